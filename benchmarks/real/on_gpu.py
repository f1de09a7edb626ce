"""A real model on one GPU: long responses, stale tokens, with importance weights and with a clip.

A minute of supervised training teaches the model the worked solutions of reasoning-gym's
gsm_symbolic, sentences that end in `#### 288`. From there, four runs train it with rewards:
`dapo-loss` and the arm `unclipped` in both cells with lag of `benchmarks.frontier`, at one learning
rate. They go at the same time, in processes of their own, because so small a model leaves a GPU
idle most of the time. After its first steps a run says how many it can make until the end of
--minutes, and all make the smallest number. They sample with vLLM where it is installed, and if
that fails before a step, with transformers.

    python -m benchmarks.real.on_gpu --problems problems.jsonl
    python -m benchmarks.real.on_gpu --problems problems.jsonl --model FOLDER --out DIR
    python -m benchmarks.real.on_gpu --out DIR

The first command writes the problems, and needs reasoning-gym. The second one is for a machine with
a GPU and without a network: carry there this checkout, rlobj's packages, the file of problems, and
the model's folder, which `python -m benchmarks.real_model` makes. DIR gets on_gpu.md, on_gpu.json
and on_gpu.png, and the runs without checkpoints. If the machine ends early, the runs have all steps
that were done, and the third command writes the page, also where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import rlobj
from benchmarks.frontier import ARMS, BASE, CELLS
from benchmarks.harness import machine, note
from rlobj.base.files import write_whole
from rlobj.insight.run_report.figures import COLORS
from rlobj.reporting.markdown import markdown_table
from rlobj.runs.layout import is_run
from rlobj.runs.metrics import ACCURACY, read_metrics

RUNS = {
    f"{arm}, lag {cell.depth}": (arm, cell)
    for cell, arm in product(CELLS.values(), (BASE, "unclipped"))
    if cell.depth > 0
}
"""The arm and the cell of each run."""
HELD_OUT, LONGEST = 512, 160
"""Problems that no training sees, from the first; and the tokens of the longest solution."""
EVERY = 20
"""Steps between evaluations. A run that is not shorter ends with one."""
MEASURED = 4
"""Steps after the first one that tell how long a step takes."""
RESERVE = 20.0
"""Seconds for the ends of the runs and for the page."""
PHASES = ("sampling", "grading", "scoring", "planning", "forward", "backward", "optimizer")
PHASES += ("syncing", "evaluating", "writing", "other", "step")
Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Lines of metrics by name; the first one is the evaluation before the first step."""
CURVES = {
    "eval/accuracy": "held-out accuracy",
    "reward/accuracy": "accuracy of the samples",
    "policy/entropy": "entropy, nats",
    "train/grad_norm": "norm of the gradient",
}


def main() -> None:
    options = _parser().parse_args()
    if options.part == "warm start":
        warm_start(options)
    elif options.part:
        train(options)
    else:
        if options.problems and not options.problems.exists():
            write_problems(options.problems)
        if options.model:
            make(options)
        if options.out:
            write_page(options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--problems", type=Path, help="file of the problems; written if missing")
    parser.add_argument("--model", type=Path, help="folder of the model")
    parser.add_argument("--out", type=Path, help="folder of the runs and the page")
    parser.add_argument("--minutes", type=float, default=9.0, help="of everything")
    parser.add_argument("--warm-seconds", type=float, default=60.0, help="of the warm start")
    parser.add_argument("--warm-batches", type=int, default=10_000, help="of it, at most")
    parser.add_argument("--steps", type=int, default=200, help="of each run, at most")
    parser.add_argument("--prompts", type=int, default=64, help="of a step, and of a warm batch")
    parser.add_argument("--group", type=int, default=8, help="responses to a prompt")
    parser.add_argument("--tokens", type=int, default=LONGEST, help="of a response, at most")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="problems of an evaluation")
    parser.add_argument("--engine", help="default: vllm, then transformers")
    parser.add_argument("--rate", type=float, default=1e-4, help="the learning rate")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # what this process does
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    return parser


def write_problems(file: Path) -> None:
    """Problems with their solutions, but for those whose solution ends in another number."""
    import reasoning_gym

    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for row in reasoning_gym.create_dataset("gsm_symbolic", size=12_000, seed=0):
            solution = row["metadata"]["answer_cot"].strip()
            if solution.endswith(f"#### {row['answer']}"):
                kept = {"problem": row["question"], "answer": row["answer"], "solution": solution}
                lines.write(json.dumps(kept, ensure_ascii=False) + "\n")


# The processes.


def make(options: argparse.Namespace) -> None:
    """Train in --out, a new folder, within the time."""
    import torch  # noqa: F401  # so that `machine` names the GPU

    until = time.time() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    if (options.out / "facts.json").exists():
        raise SystemExit(f"{options.out} has runs already: give a new folder, or no --model")
    installed = importlib.util.find_spec("vllm") is not None
    engines = [options.engine] if options.engine else ["vllm"] * installed + ["transformers"]
    options.engine = engines[0]
    _do(["warm start"], options, until)
    if not (options.out / "warm" / "config.json").exists():
        raise SystemExit(f"the warm start failed; its log is {options.out / 'warm start.log'}")
    for options.engine in engines:
        facts = {"minutes": options.minutes, "engine": options.engine, **machine()}
        (options.out / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        _do([*RUNS], options, until)
        if all(_steps(options.out / options.engine / name) for name in RUNS):
            break
        note(f"{options.engine}: a run failed before its first step, see the logs in {options.out}")
    shutil.rmtree(options.out / "warm", ignore_errors=True)


def _do(parts: Sequence[str], options: argparse.Namespace, until: float) -> None:
    """Do parts at the same time, each in a process; until the time, or a failure at the start."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    for part in parts:
        words = ["--part", part, "--until", str(until)]
        for name, value in vars(options).items():
            if value is not None and name not in ("part", "until"):
                words += [f"--{name.replace('_', '-')}", str(value)]
        command = [sys.executable, "-m", "benchmarks.real.on_gpu", *words]
        with (options.out / f"{part}.log").open("ab") as log:
            processes[part] = subprocess.Popen(command, stdout=log, stderr=log)

    def failed(part: str) -> bool:
        return bool(processes[part].poll()) and not _steps(options.out / options.engine / part)

    while any(process.poll() is None for process in processes.values()) and time.time() < until:
        if any(map(failed, parts)):
            break
        time.sleep(0.2)
    for process in processes.values():
        process.kill()
        process.wait()


# What they do.


def warm_start(options: argparse.Namespace) -> None:
    """Supervised training on worked solutions; writes OUT/warm, and the problems of the runs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(options.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model.to(device)
    lines, examples = [], []
    for line in options.problems.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        solution = [*tokenizer(row["solution"]).input_ids, tokenizer.eos_token_id]
        if len(solution) <= LONGEST:
            lines.append(f"{line}\n")
            examples.append((tokenizer(f"{row['problem']}\n").input_ids, solution))
    (options.out / "held-out.jsonl").write_text("".join(lines[:HELD_OUT]), encoding="utf-8")
    (options.out / "train.jsonl").write_text("".join(lines[HELD_OUT:]), encoding="utf-8")
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    began, chance = time.monotonic(), random.Random(0)
    with (options.out / "warm.txt").open("w") as losses:
        for number in range(1, options.warm_batches + 1):
            spent = (time.monotonic() - began) / options.warm_seconds
            if spent >= 1:
                break
            batch = chance.sample(examples[HELD_OUT:], options.prompts)
            size = len(batch), max(len(prompt) + len(solution) for prompt, solution in batch)
            ids, labels = torch.zeros(size, dtype=torch.long), torch.full(size, -100)
            for i, (prompt, solution) in enumerate(batch):  # padding on the right needs no mask
                end = len(prompt) + len(solution)
                ids[i, :end] = torch.tensor([*prompt, *solution])
                labels[i, len(prompt) : end] = torch.tensor(solution)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = model(ids.to(device), labels=labels.to(device)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.param_groups[0]["lr"] = 2e-4 * min(number / 20, 1 - spent)
            optimizer.step()
            optimizer.zero_grad()
            losses.write(f"{loss.item()}\n")
    model.save_pretrained(options.out / "warm")
    tokenizer.save_pretrained(options.out / "warm")


def train(options: argparse.Namespace) -> None:
    """One run with rewards, from OUT/warm."""
    arm, cell = RUNS[options.part]
    preset, changes = ARMS[arm]
    settings: dict[str, Any] = {
        "model.chat_template": False,
        "data.template": "{prompt}\n",
        "rewards.after": "####",
        "sampling.engine": options.engine,
        "sampling.prompts_per_step": options.prompts,
        "sampling.group_size": options.group,
        "sampling.max_tokens": options.tokens,
        "sampling.batch_tokens": 1 << 19,
        "training.steps": options.steps,
        "sampling.async_depth": cell.depth,
        "training.learning_rate": options.rate,
        "training.old_logprobs": "sampler",
        "training.updates_per_step": cell.updates,
        "training.warmup_steps": 0,
        "training.weight_decay": 0.0,
        "training.fused": True,
        "training.strategy": "ddp",  # from here: `auto` would take the GPU's whole memory
        "training.gradient_checkpointing": False,
        "training.micro_batch_tokens": 1 << 15,
        "evaluation.every": EVERY,
        "evaluation.samples": 1,
        "evaluation.problems": options.held_out,
        "checkpoint.every": 0,
        "output.tables_every": EVERY,
    }
    if options.engine == "vllm":
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}  # seconds, and no compilation
        vllm = {
            "gpu_memory_utilization": 0.2,
            "kv_cache_bytes": 8 << 30,
            "sleep_level": 0,
            "extra": {
                "compilation_config": graphs,
                "max_model_len": 1024,
                "max_num_seqs": 512,
            },
        }
        settings |= {f"sampling.vllm.{name}": value for name, value in vllm.items()}
    run = options.out / options.engine / options.part
    rlobj.train(
        rlobj.load_preset(preset).objective.but(**changes),
        model=str(options.out / "warm"),
        data=str(options.out / "train.jsonl"),
        eval_on=str(options.out / "held-out.jsonl"),
        reward="exact",
        out=run,
        settings=settings,
        progress=False,
        callbacks=[Pace(run, options)],
    )
    shutil.rmtree(run / "checkpoints")


class Pace(rlobj.Callback):
    """Measures the first steps, and ends the run after as many as all runs can make in time.

    RUN/limit is the number that a run can make. A run that is ended so writes all that it has.
    """

    def __init__(self, run: Path, options: argparse.Namespace) -> None:
        self._run, self._most, self._until = run, options.steps, options.until - RESERVE
        self._seconds: list[float] = []
        self._began = self._evaluation = 0.0

    def phase(self, name: str) -> None:
        self._began = time.time()

    def evaluated(self, step: int, summary: Any) -> None:
        self._evaluation = time.time() - self._began

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        self._seconds.append(metrics["time/step"] - metrics.get("time/evaluating", 0.0))
        left = self._until - time.time()
        if step == 1 + MEASURED:
            pace = 1.05 * median(self._seconds[1:]) + self._evaluation / EVERY
            write_whole(self._run / "limit", str(step + int(left / pace)).encode())
        limits = [int(file.read_text()) for file in self._run.parent.glob("*/limit")]
        steps = min([self._most, *limits])
        if step < self._most and (left < 0 or step >= (steps - steps % EVERY or steps)):
            signal.raise_signal(signal.SIGTERM)


# The page.


def write_page(out: Path) -> None:
    """Write on_gpu.md, on_gpu.json and on_gpu.png from the files of the runs."""
    facts = json.loads((out / "facts.json").read_text(encoding="utf-8"))
    losses = [float(line) for line in (out / "warm.txt").read_text().splitlines()]
    folder = out / facts["engine"]
    runs = {name: lines for name in RUNS if (lines := _steps(folder / name))}
    last = min((lines[-1]["step"] for lines in runs.values()), default=0)
    runs = {arm: [line for line in lines if line["step"] <= last] for arm, lines in runs.items()}
    page = [
        "# A real model on one GPU",
        f"Each run has {last} steps. The warm start has {len(losses)} batches; its loss falls from "
        f"{losses[0]:.3f} to {fmean(losses[-10:]):.3f}.",
        "![Accuracy, entropy and gradient](on_gpu.png)",
        _accuracies(runs),
        _seconds(runs),
    ]
    for name in runs:
        page += [f"## {name}", f"```text\n{rlobj.diagnose(folder / name)}\n```"]
    page.append("; ".join(f"{name} {value}" for name, value in facts.items()))
    (out / "on_gpu.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    results = {"facts": facts, "warm start": losses, "runs": runs}
    (out / "on_gpu.json").write_text(json.dumps(results) + "\n", encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        draw(runs, out / "on_gpu.png")


def _accuracies(runs: Runs) -> str:
    """Held-out accuracy and its standard error, by step."""
    cells = {
        arm: {
            line["step"]: f"{line[ACCURACY.key]:.3f} ± {ACCURACY.error(line):.3f}"
            for line in lines
            if ACCURACY.key in line
        }
        for arm, lines in runs.items()
    }
    steps = sorted({step for of_run in cells.values() for step in of_run})
    rows = [[arm, *(of_run.get(step, "–") for step in steps)] for arm, of_run in cells.items()]
    return markdown_table(["held-out accuracy after step", *map(str, steps)], rows)


def _seconds(runs: Runs) -> str:
    """Mean seconds of a step by phase."""
    rows = []
    for arm, lines in runs.items():
        means = [fmean(line.get(f"time/{name}", 0.0) for line in lines[1:]) for name in PHASES]
        rows.append([arm, *(f"{mean:.2f}" for mean in means)])
    return markdown_table(["mean seconds of a step", *PHASES], rows)


def _steps(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics of a run that has done a step."""
    lines = read_metrics(run) if is_run(run) else []
    return lines if len(lines) > 1 else []


def draw(runs: Runs, file: Path) -> None:
    """A panel for each of `CURVES`."""
    from matplotlib.figure import Figure

    figure = Figure((10, 6), layout="constrained")
    for axis, (key, title) in zip(figure.subplots(2, 2).flat, CURVES.items(), strict=True):
        for color, (arm, lines) in zip(COLORS, runs.items(), strict=False):
            curve = {line["step"]: line[key] for line in lines if line.get(key) is not None}
            axis.plot(curve.keys(), curve.values(), color=color, label=arm)
        axis.set_title(title)
        axis.set_xlabel("step")
    figure.axes[0].legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
