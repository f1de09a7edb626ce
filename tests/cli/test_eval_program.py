"""`rlobj eval` as a user runs it: killed, continued, regraded, compared, on every engine."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from forked import WITH_VLLM, wait_until
from runs import finish, program, ranks
from screens import printed

from rlobj.runs.evaluation_samples import Samples
from rlobj.samplers.vllm import installed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    """Sums of one digit, many enough for several blocks."""
    file = tmp_path_factory.mktemp("problems") / "sums.jsonl"
    rows = [
        {"id": f"{a}+{b}+{c}", "problem": f"{a}+{b}+{c}=", "answer": str(a + b + c)}
        for a in range(10)
        for b in range(10)
        for c in range(1)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def words(policy: Path, problems: Path, out: Path, *more: str) -> list[str]:
    return [
        *("eval", str(policy), "--on", str(problems), "--set", "data.template={prompt}"),
        *("-n", "8", "--set", "sampling.max_tokens=24", "--reward", "exact", "--out", str(out)),
        *more,
    ]


def here(*words: str | Path, code: int = 0) -> str:
    """What the program prints in this process, in one line: where a new one would show no more."""
    return " ".join(printed(*words, code=code).split())


def lines(folder: Path, name: str = "samples.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().split("\n")[:-1]]


def numbers(folder: Path) -> dict:
    """results.json without what may differ between two sessions."""
    found = json.loads((folder / "results.json").read_text())
    return found["results"]


ENGINES = [
    "transformers",
    pytest.param(
        "vllm",
        marks=[
            pytest.mark.vllm,
            pytest.mark.skipif(installed.installed_vllm() is None, reason="vLLM is not installed"),
        ],
    ),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_evaluation_continues_with_the_same_command(policy, problems, tmp_path, engine):
    log = tmp_path / "log"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    more = ("--sampler", engine)
    imports = WITH_VLLM if engine == "vllm" else {}
    finish(program(words(policy, problems, whole, *more), log, **imports), log)
    process = program(words(policy, problems, killed, *more), log, **imports)
    samples = killed / "samples.jsonl"
    wait_until(lambda: samples.exists() and samples.stat().st_size > 0, 300, process, log)
    process.kill()
    process.wait()
    done = len((killed / "samples.jsonl").read_text().split("\n")) - 1
    assert 0 < done < 800, "killed too late: the test shows nothing"
    text = finish(program(words(policy, problems, killed, *more), log, **imports), log)
    assert f"{done} of 800 responses are there already" in text
    found, expected = lines(killed), lines(whole)
    keys = [(row["problem"], row["sample"]) for row in found]
    assert len(keys) == len(set(keys)) == 800
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, expected))
    assert numbers(killed) == numbers(whole)
    for name in ("results.md", "report.html"):
        assert (killed / name).stat().st_size > 0
    changed = ("--set", "evaluation.temperature=0.5", "--sampler", "transformers")
    refused = here(*words(policy, problems, killed, *changed), code=2)
    assert re.search(r"sums\.jsonl\.temperature: 1\.0 there, 0\.5 now", refused)
    assert len(lines(killed)) == 800


def test_killed_processes_continue_in_another_number_of_processes(policy, problems, tmp_path):
    """A rank is killed; the launcher ends the other. Three ranks of another launcher continue."""
    log, whole, killed = tmp_path / "log", tmp_path / "whole", tmp_path / "killed"
    here(*words(policy, problems, whole))
    process = program([*words(policy, problems, killed), "--processes", "2"], log)
    own = killed / "samples.1.jsonl"
    wait_until(lambda: own.exists() and own.stat().st_size > 0, 300, process, log)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    text = finish(process, log, code=1)
    assert "rank 1: SIGKILL" in text
    found = Samples.open(killed)
    assert {Path(each).name for each in killed.glob("samples*")} == {"samples.jsonl", own.name}
    assert 0 < len(found.responses) < 800, "killed too late: the test shows nothing"
    text = ranks(words(policy, problems, killed), 3)
    assert f"{len(found.responses)} of 800 responses are there already" in text
    for name in ("samples.jsonl", "grades.jsonl"):
        assert sorted(map(json.dumps, lines(killed, name))) == sorted(
            map(json.dumps, lines(whole, name))
        )
    assert numbers(killed) == numbers(whole)
    assert [each.name for each in killed.glob("*.1.jsonl")] == []


def test_stored_responses_are_shown_regraded_and_compared(policy, problems, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    here(*words(policy, problems, one, "--limit", "20"))
    here(*words(policy, problems, two, "--limit", "20", "--seed", "1"))
    before = lines(one, "grades.jsonl")
    assert "to see which grades changed" in here("eval", "regrade", one, "--reward", "math")
    after = lines(tmp_path / "one-math", "grades.jsonl")
    assert {row["reason"] for row in after} != {row["reason"] for row in before}
    assert "reward.kind: 'exact' in A" in here("eval", "compare", one, tmp_path / "one-math")
    here("eval", "regrade", tmp_path / "one-math", "--reward", "exact", "--out", tmp_path / "back")
    again = lines(tmp_path / "back", "grades.jsonl")
    assert sorted(map(str, again)) == sorted(map(str, before))  # in the order of the responses
    assert "avg@n" in here("eval", "show", one)
    text = here("eval", "compare", one, two)
    assert "sign-flip permutation test" in text
    assert "sums.jsonl.seed: 0 in A, 1 in B" in text
    assert "another process" not in text
