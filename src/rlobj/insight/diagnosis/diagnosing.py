"""`diagnose`: what is wrong with finished or running runs; `Watch`: the same, step by step.

Findings: what a diagnosis says about a run.

What is behind a finding, from the tables of a run: the tokens that move the entropy, the
responses that all problems get, the problems whose gold answer looks wrong.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from rlobj.base.arrow import pc
from rlobj.base.errors import ConfigError, RlobjError, counted
from rlobj.base.files import a_file, step_of
from rlobj.base.targets import importing
from rlobj.config import run_folder
from rlobj.config.run_config import RunConfig
from rlobj.insight.coverage import COLUMNS, Coverage
from rlobj.insight.diagnosis.checks import CHECKS, METRICS, History
from rlobj.insight.inspecting import tokens_by_step
from rlobj.records.reading import read_records
from rlobj.reporting import visible

PAGE = "docs/diagnosis.md"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run.

    Attributes:
        name: of the check, such as "collapse".
        evidence: what was measured, in one or two sentences with numbers.
        cure: what would have touched it: settings and rules.
        since: the first step at which it held, from 1.
        until: the last step at which it held.
        holds: it held at the last step that was read.
        numbers: the numbers of the evidence by name.
        details: lines below the evidence, such as the tokens that drive it.
    """

    name: str
    evidence: str
    cure: str
    since: int
    until: int
    holds: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)
    details: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """The section of the documentation that explains it."""
        return f"{PAGE}#{self.name}"

    @property
    def when(self) -> str:
        """Its steps in words."""
        if self.holds:
            return f"since step {self.since}"
        if self.since == self.until:
            return f"at step {self.since}"
        return f"between steps {self.since} and {self.until}"

    def __str__(self) -> str:
        lines = [f"{self.name}, {self.when}: {self.evidence}", *self.details, self.cure, self.page]
        return "\n  ".join(lines)


@dataclass(frozen=True)
class RunDiagnosis:
    """What was found in one run.

    Attributes:
        run: its folder.
        steps: number of steps that were read.
        findings: in the order of the steps in which they began.
        checked: names of the checks whose metrics the run has.
        unchecked: names of the checks whose metrics the run lacks; those of conversations only if
            it holds some.
        notes: settings that were changed, and what could not be read, in words.
    """

    run: Path
    steps: int
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.run}, {self.steps} steps: {counted(len(self.findings), 'finding')}"]
        lines += [str(finding) for finding in self.findings]
        return "\n".join([*lines, *self.coverage, *self.notes])

    @property
    def coverage(self) -> list[str]:
        """What was checked and what was not, in words."""
        found = [f"checked: {', '.join(self.checked)}"]
        if self.unchecked:
            found.append(f"not checked, for lack of metrics: {', '.join(self.unchecked)}")
        return found


@dataclass(frozen=True)
class Diagnosis:
    """What was found in one run or in several runs.

    Attributes:
        runs: each run's part, in the order of the arguments.
    """

    runs: tuple[RunDiagnosis, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all runs."""
        return tuple(finding for run in self.runs for finding in run.findings)

    def to_json(self) -> str:
        """All of it as JSON, with control characters escaped."""
        runs = [
            {
                **asdict(each),
                "run": str(each.run),
                "findings": [{**asdict(f), "page": f.page} for f in each.findings],
            }
            for each in self.runs
        ]
        return json.dumps({"runs": runs}, indent=1)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.runs))


STEPS = 20
"""Tables of this many steps are read: those up to the last step at which the finding held."""
FEWEST = 30
"""With fewer tokens of a sample, it is unknown which of them move the entropy."""
MOST = 5
"""Tokens or problems that are named."""


def entropy_drivers(run: Path, until: int, sign: int) -> list[str]:
    """The tokens and the quadrants of advantage and surprisal that move the entropy.

    To first order an update changes the entropy at a token by −weight·A·(entropy sensitivity).
    A token is surprising where its surprisal exceeds the entropy at its position.

    Args:
        run: the run's folder.
        until: the last step of interest.
        sign: −1 for a falling entropy, 1 for a rising one.

    Raises:
        ConfigError: the run has no records, or they cannot be read.
    """
    read = ("text", "weight", "advantage", "entropy_sensitivity", "prob", "entropy")
    steps = range(until - STEPS + 1, until + 1)
    rows = read_records(run, [*dict.fromkeys((*read, *COLUMNS))], steps=steps)
    tokens = {at: n for at, n in tokens_by_step(run).items() if at in steps}
    held = Coverage.of(run, rows, tokens)
    rows = rows.filter(pc.is_valid(rows["entropy_sensitivity"]))
    if len(rows) < FEWEST and not held.everything:
        of = f" of {math.fsum(tokens.values()):,.0f}" if tokens else ""
        few = f"{len(rows):,}{of} tokens were recorded and scored"
        return [f"tokens whose gradient moves it that way: unknown: {few}"]
    if not len(rows):
        return []
    change = pc.multiply(pc.multiply(rows["weight"], rows["advantage"]), rows[read[3]])
    change = pc.multiply(pc.divide(change, rows["inclusion_probability"]), -float(sign))
    surprising = pc.greater(pc.negate(pc.ln(rows["prob"])), rows["entropy"])
    quadrants = pc.binary_join_element_wise(
        pc.if_else(pc.greater(rows["advantage"], 0), "positive", "negative"),
        pc.if_else(surprising, "surprising", "likely"),
        " ",
    )
    table = pyarrow.table({"token": rows["text"], "quadrant": quadrants, "change": change})
    total = pc.sum(pc.max_element_wise(table["change"], 0.0)).as_py() or 1.0
    tokens, quadrants = (_largest(table, key, total) for key in ("token", "quadrant"))
    about = "" if held.everything else "≈ "
    named = ", ".join(f"[{visible(text, 24)}] {about}{share}" for text, share in tokens)
    divided = ", ".join(f"{name} {about}{share}" for name, share in quadrants)
    estimated = f", estimated from {len(rows):,} recorded tokens" if about else ""
    return [
        f"tokens whose gradient moves it that way{estimated}: {named}",
        f"by advantage and surprisal: {divided}",
    ]


def _largest(table: Any, key: str, total: float) -> list[tuple[str, str]]:
    """The values of a column with the largest sums of `change`, and their share in words."""
    sums = table.group_by(key).aggregate([("change", "sum")])
    rows = sums.sort_by([("change_sum", "descending")]).slice(0, MOST).to_pylist()
    shares = [(row[key], row["change_sum"] / total) for row in rows]
    return [(name, f"{share:.0%}") for name, share in shares if share >= 0.01]


def disputed_problems(run: Path, until: int) -> list[str]:
    """Problems whose responses all give one answer, which is graded wrong."""
    found: dict[str, str] = {}
    columns = ("group", "prompt", "answer", "graded_answer", "correct")
    for table in _samples(run, until, columns):
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in table.to_pylist():
            groups.setdefault(row["group"], []).append(row)
        for rows in groups.values():
            first = rows[0]
            if agreed([r["graded_answer"] for r in rows], [r["correct"] for r in rows]) is False:
                prompt, gold = visible(first["prompt"], 60), visible(first["answer"], 40)
                answer = visible(first["graded_answer"], 40)
                found[prompt] = f"{prompt}: all answer {answer}, the gold answer is {gold}"
    return list(found.values())[:MOST]


def common_responses(run: Path, until: int) -> list[str]:
    """The responses that most prompts get."""
    counts: Counter[str] = Counter()
    for table in _samples(run, until, ("response",)):
        counts.update(table["response"].to_pylist())
    total = counts.total()
    shares = [(text, count / total) for text, count in counts.most_common(MOST)]
    named = ", ".join(f"[{visible(text, 60)}] {share:.0%}" for text, share in shares)
    return [f"the most common responses: {named}"] if total else []


def _samples(run: Path, until: int, columns: Sequence[str]) -> Iterator[Any]:
    """The sample tables of the last `STEPS` steps, as pyarrow tables."""
    for file in sorted((run / "samples").glob("*.parquet")):
        if until - STEPS < step_of(file) <= until:
            yield parquet.read_table(a_file(file), columns=list(columns))


def agreed(answers: Sequence[str | None], correct: Sequence[bool | None]) -> bool | None:
    """Whether the common answer of a group is right; None if its responses do not all agree."""
    if len(answers) < 3 or None in answers or None in correct or len(set(answers)) > 1:
        return None
    return bool(correct[0])


_DETAILS = {
    "entropy-falling": partial(entropy_drivers, sign=-1),
    "entropy-exploding": partial(entropy_drivers, sign=1),
    "verifier-trouble": disputed_problems,
}
"""What reads the tables of a run for the details of a finding."""


class Watch:
    """The findings of a run so far. A line takes about 0.2 ms, however long the run is.

    Args:
        config: the run's.
        foreign: see `History`.

    Attributes:
        history: the metrics so far.
        findings: by name; those that no longer hold as well.
    """

    def __init__(self, config: RunConfig, foreign: bool = False) -> None:
        self.history = History(config, METRICS, foreign)
        self.findings: dict[str, Finding] = {}

    def add(self, line: Mapping[str, Any]) -> list[Finding]:
        """Check the run after one more step.

        Args:
            line: of metrics.jsonl. Lines that are no training step are ignored.

        Returns:
            The findings that hold now and did not after the step before.
        """
        if "reward/mean" not in line:
            return []
        self.history.add(line)
        step, begun = self.history.steps[-1], []
        for name, check in CHECKS.items():
            found, before = check.look(self.history), self.findings.get(name)
            if found is None:
                if before is not None and before.holds:
                    self.findings[name] = replace(before, holds=False)
                continue
            since = before.since if before is not None else step
            numbers = {key: value for key, value in found.numbers.items() if isfinite(value)}
            finding = Finding(name, found.evidence, found.cure, since, step, numbers=numbers)
            self.findings[name] = finding
            if before is None or not before.holds:
                begun.append(finding)
        return begun

    def metrics(self) -> dict[str, float]:
        """The number of findings that hold, and 1 or 0 for each that has ever held."""
        holding = {f"diagnosis/{f.name}": float(f.holds) for f in self.findings.values()}
        return {"diagnosis/findings": sum(holding.values()), **holding}


def diagnose(
    runs: Path | str | Iterable[Path | str],
    *,
    trust: bool = False,
    progress: run_folder.Progress = lambda done, total: None,
) -> Diagnosis:
    """Check runs for what goes wrong in training: collapse, drift, spikes, rules without effect.

    Each finding has its evidence with numbers, the step since which it holds, and what would have
    touched it. A check is silent where the run lacks its metrics.

    Args:
        runs: the folder of a run, finished or not, or several of them.
        trust: import the code that the settings of a run name by its path.
        progress: called with (bytes read, all bytes) of the metrics of a run.

    Raises:
        ConfigError: a folder is no run, has no finished step, or names code without `trust`.

    Example:
        >>> import rlobj
        >>> run = rlobj.train("grpo", data="max-digits", settings={"training.steps": 3}).path
        >>> diagnosis = rlobj.diagnose(run)
        >>> [finding.name for finding in diagnosis.findings]
        []
        >>> "collapse" in diagnosis.runs[0].checked
        True
    """
    paths = run_folder.run_paths(runs)
    with importing(trust):
        return Diagnosis(tuple(_diagnosed(path, progress) for path in paths))


def _diagnosed(run: Path, progress: run_folder.Progress) -> RunDiagnosis:
    notes: list[str] = []
    return diagnose_lines(run, run_folder.read_lines(run, notes, progress), notes)


def diagnose_lines(run: Path, lines: Iterable[Mapping[str, Any]], notes: list[str]) -> RunDiagnosis:
    """Check a run whose metrics.jsonl is read already; nothing that its settings name is imported.

    Args:
        run: the run's folder.
        lines: of metrics.jsonl.
        notes: what could not be read; changes of settings, and more, are added.

    Raises:
        ConfigError: as `diagnose`.
    """
    for step, name, before, now in run_folder.read_changes(run):
        notes.append(visible(f"changed after step {step}: {name} {before} → {now}"))
    watch = Watch(run_folder.read_run_config(run), run_folder.in_another_trainer(run))
    for line in lines:
        watch.add(line)
    steps, stopped = watch.history.steps, run_folder.read_stop(run)
    if not steps and stopped is None:
        raise ConfigError(f"{run} has no finished step yet, so there is nothing to diagnose")
    findings = {f.name: _with_details(run, f, notes) for f in watch.findings.values()}
    if stopped is not None:
        step, name, message = stopped
        text = f"the run stopped at step {step}: {visible(message.partition(chr(10))[0])}"
        if name not in CHECKS:
            notes.append(text)
        elif name in findings:
            details = (*findings[name].details, text)
            findings[name] = replace(findings[name], details=details)
        else:
            findings[name] = Finding(name, text, "See the message.", step, step)
    known = [name for name, c in CHECKS.items() if any(map(watch.history.knows, c.needs))]
    others = () if watch.history.config.environment.active else ("tools/", "turns/")
    asked = [name for name, c in CHECKS.items() if not c.needs[0].startswith(others)]
    return RunDiagnosis(
        run,
        len(steps),
        tuple(sorted(findings.values(), key=lambda finding: finding.since)),
        tuple(known),
        tuple(name for name in asked if name not in known),
        tuple(notes),
    )


def _with_details(run: Path, finding: Finding, notes: list[str]) -> Finding:
    """The finding with what is behind it; a note says if the tables cannot be read.

    The command in its cure names the run and the step.
    """
    cure = finding.cure.replace("RUN", str(run)).replace("STEP", str(finding.until))
    finding = replace(finding, cure=cure)
    look = _DETAILS.get(finding.name)
    if "same_response" in finding.numbers:
        look = common_responses
    if look is None:
        return finding
    try:
        details = look(run, finding.until)
    except (RlobjError, OSError, ValueError, KeyError) as error:  # pyarrow's are ValueErrors
        notes.append(f"{finding.name}: its tables cannot be read: {visible(str(error), 200)}")
        return finding
    return replace(finding, details=tuple(details))
