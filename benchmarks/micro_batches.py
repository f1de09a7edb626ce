"""The same configuration line at several micro-batch sizes: a trainer's own selection, and rlobj's.

One rollout of 32 responses of the policy of `rlobj train`, and one update of it in TRL's
GRPOTrainer and verl's training worker. Only the micro-batch size changes from column to column.
The numbers say how far the gradient is from that at micro-batch 32, relative to its norm. verl's
kl_cov has no effect before the policy has moved, so verl's numbers are of the second update. Its
share of tokens is 0.02 here, in both lines, because 0.0002 of so small an update is no token.

verl has an environment of its own: `.ci/verl` makes it, and RLOBJ_VERL_VENV names its folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import in_trl
from benchmarks.harness import ROOT, VERL, Table, ask, main, note

SIZES = (1, 4, 32)
RESPONSES, GROUP, LENGTH = 32, 8, 32
_COLOURS = ("#b8b8b8", "#1f5fbf")
KL_COV = """
base: kl-cov
objective: {penalties: [{kind: kl, estimator: abs, against: old, coefficient: 1.0, where: RULE}]}
""".replace("RULE", "\"covariance.top(0.02, round='floor', at_least=1)\"")
TRL = {"top_entropy_quantile=0.2": None, 'objective="20-entropy"': "20-entropy"}
LINES = {"loss_mode=kl_cov, kl_cov_ratio=0.02": None, "preset file: kl-cov with 2%": "kl-cov"}


class Bars(Table):
    """A panel for each trainer, with a bar for each size below the whole update."""

    def draw(self, figure: Any) -> None:
        """Draw the trainer's own selection beside rlobj's."""
        figure.set_size_inches(12, 3.8)
        figure.suptitle(
            f"Difference of an update's gradient from that with one micro-batch of {RESPONSES}"
        )
        trainers = list(dict.fromkeys(row["trainer"] for row in self.rows))
        panels = figure.subplots(1, len(trainers), sharey=True, squeeze=False)[0]
        sizes = SIZES[:-1]
        for axis, trainer in zip(panels, trainers, strict=True):
            rows = [row for row in self.rows if row["trainer"] == trainer]
            for place, row in enumerate(rows):
                values = [row[f"at_{size}"] for size in sizes]
                spots = [i + 0.38 * (place - 0.5) for i in range(len(sizes))]
                by, colour = f"{row['by']}: {row['line']}", _COLOURS[place]
                # The line keeps a bar that is too low to be seen in the picture.
                bars = axis.bar(
                    spots, values, 0.34, label=by, color=colour, edgecolor=colour, linewidth=2
                )
                shown = [
                    f"{v:.0%}" if v > 0.005 else f"{v:.0e}".replace("e-0", "e-") for v in values
                ]
                axis.bar_label(bars, shown, padding=3)
            axis.set_xticks(range(len(sizes)), [f"micro-batch {size}" for size in sizes])
            axis.set_title(trainer)
            axis.yaxis.set_major_formatter("{x:.0%}")
            axis.set_ylim(0, 1.5 * max(row[f"at_{size}"] for row in self.rows for size in sizes))
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(loc="upper center", frameon=False)
        panels[0].set_ylabel("relative norm of the difference")
        below = f"{RESPONSES} responses; TRL: the first update, verl: the second"
        figure.supxlabel(below, fontsize="medium")


def sample(folder: Path) -> None:
    """Write rollout.json: prompts, responses and rewards."""
    from transformers import AutoTokenizer

    from rlobj.data.tasks import TASKS
    from rlobj.models.embedded import embedded_policy

    policy = embedded_policy("scratchpad")
    model = in_trl.load_policy(str(policy))
    tokenizer = AutoTokenizer.from_pretrained(policy)
    problems = list(TASKS["scratchpad"].problems("train"))
    problems = problems[:: len(problems) // (RESPONSES // GROUP)][: RESPONSES // GROUP]
    torch.manual_seed(0)
    rows = []
    for problem in problems:
        prompt = tokenizer(problem.prompt, return_tensors="pt")["input_ids"]
        asked = {"num_return_sequences": GROUP, "max_new_tokens": LENGTH}
        made = model.generate(prompt, do_sample=True, **asked)
        for tokens in made[:, prompt.shape[1] :].tolist():
            ends = [i + 1 for i, token in enumerate(tokens) if token == tokenizer.eos_token_id]
            tokens = tokens[: ends[0] if ends else None]
            text = tokenizer.decode(tokens, skip_special_tokens=True).replace(" ", "")
            reward = float(text.rpartition("#")[2] == problem.answer)
            row = {"text": problem.prompt, "prompt": prompt[0].tolist(), "response": tokens}
            rows.append({**row, "reward": reward})
    (folder / "rollout.json").write_text(json.dumps({"policy": str(policy), "rows": rows}))


def answer(trainer: str, folder: str, name: str = "", size: int = 0) -> Any:
    """Gradients in a trainer, written to FOLDER as NAME-SIZE.pt."""
    rollout = json.loads((Path(folder) / "rollout.json").read_text())
    if trainer == "trl":
        found = trl_gradient(rollout, TRL[name], size, folder)
        torch.save(found, _file(folder, name, size))
    else:
        verl_gradients(rollout, folder)


def _file(folder: Path | str, name: str, size: int) -> Path:
    return Path(folder) / f"{name.strip('+')}-{size}.pt".replace('"', "").replace("=", "-")


def trl_gradient(rollout: Any, objective: str | None, size: int, folder: str) -> torch.Tensor:
    """The gradient of the first update in TRL."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    from rlobj.integrations.trl import ObjectiveTrainer

    gradients: list[torch.Tensor] = []
    texts = list(dict.fromkeys(row["text"] for row in rollout["rows"]))

    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            gradients.append(in_trl.flat_gradient(model))

    def given(prompts: list[str], trainer: Any) -> dict[str, Any]:
        rows = {text: [r for r in rollout["rows"] if r["text"] == text] for text in texts}
        chosen = [rows[prompt].pop(0) for prompt in prompts]
        return {
            "prompt_ids": [row["prompt"] for row in chosen],
            "completion_ids": [row["response"] for row in chosen],
            "logprobs": None,
            "graded": [row["reward"] for row in chosen],
        }

    def reward(completions: list[str], graded: list[float], **_: Any) -> list[float]:
        return graded

    settings = in_trl.batches(size, RESPONSES, GROUP, LENGTH) | {"max_steps": 1}
    own = {"top_entropy_quantile": 1.0 if objective else 0.2, "max_grad_norm": 0.0}
    trainer = in_trl.make_trainer(
        ObjectiveTrainer if objective else GRPOTrainer,
        rollout["policy"],
        Path(folder) / f"trl-{size}",
        {**settings, **own},
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        rollout_func=given,
        callbacks=[Gradients()],
        **({"objective": objective} if objective else {}),
    )
    trainer.train()
    return gradients[0]


def verl_gradients(rollout: Any, folder: str) -> None:
    """The gradients of the second update in verl, for both lines and every size."""
    sys.path.insert(0, str(ROOT / "tests" / "verl_plugin"))
    harness: Any = import_module("harness")
    verl: Any = import_module("verl.trainer.ppo.core_algos")
    preset = Path(folder) / "kl-cov.yaml"
    preset.write_text(KL_COV)
    workers = harness.start(harness.run_config(Path(rollout["policy"]), preset=str(preset)))
    rows = rollout["rows"]
    answers = [torch.tensor(row["response"]) for row in rows]
    inputs = [torch.tensor(row["prompt"] + row["response"]) for row in rows]
    ones = [torch.ones_like(row) for row in answers]
    scores = [torch.zeros(len(row)) for row in answers]
    for score, row in zip(scores, rows, strict=True):
        score[-1] = row["reward"]
    data = harness.rollout(responses=RESPONSES)
    uids = [row["text"] for row in rows]
    fields = {
        "prompts": [torch.tensor(row["prompt"]) for row in rows],
        "responses": answers,
        "input_ids": inputs,
        "position_ids": [torch.arange(len(row)) for row in inputs],
        "response_mask": ones,
        "loss_mask": ones,
        "rm_scores": scores,
        "rollout_log_probs": [-torch.ones(len(row)) for row in answers],
    }
    for name, values in fields.items():
        data[name] = harness.nested(values)
    names = {"uid": uids, "session_id": [i % GROUP for i in range(RESPONSES)]}
    for name, values in names.items():
        harness.tensordict_utils.assign_non_tensor_stack(data, name, values)
    data = workers.score(data)
    mask = data["response_mask"].to_padded_tensor(0)
    advantages, _ = verl.compute_grpo_outcome_advantage(
        data["rm_scores"].to_padded_tensor(0), mask, np.array(uids)
    )
    lengths = [len(row) for row in answers]
    own = data.copy()
    own["advantages"] = harness.nested([a[:n] for a, n in zip(advantages, lengths, strict=True)])
    for name, chosen in LINES.items():
        for size in SIZES:
            if chosen:
                workers.group.begin(str(preset), ppo_epochs=2)
            else:
                workers.group.begin_without_rlobj("kl_cov", kl_cov_ratio=0.02, ppo_kl_coef=1.0)
            workers.update(data if chosen else own, micro_batch_size_per_gpu=size, epochs=2)
            _, second = workers.gradients()
            flat = torch.cat([each.flatten() for each in second.values()])
            torch.save(flat, _file(folder, name, size))
    workers.stop()


def measure(quick: bool, rounds: int) -> Table:
    """Both trainers, with their own line and with rlobj's, at every size."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sample(Path(folder))
        for name in TRL:
            for size in SIZES:
                note(f"TRL, {name}, micro-batch {size}")
                question = {"trainer": "trl", "folder": folder, "name": name, "size": size}
                ask("benchmarks.micro_batches", question)
        if VERL.exists():
            note("verl")
            question = {"trainer": "verl", "folder": folder}
            ask("benchmarks.micro_batches", question, python=str(VERL))
        for trainer, names in {"TRL": TRL, "verl": LINES if VERL.exists() else {}}.items():
            for name, chosen in names.items():
                found = {size: torch.load(_file(folder, name, size)) for size in SIZES}
                whole = found[SIZES[-1]]
                row = {"trainer": trainer, "by": "rlobj" if chosen else trainer, "line": name}
                far = {s: float((found[s] - whole).norm() / whole.norm()) for s in SIZES}
                rows.append(row | {f"at_{size}": each for size, each in far.items()})
    columns = {"trainer": ("trainer", ""), "line": ("configuration", "")}
    columns["by"] = ("selection by", "")
    columns |= {f"at_{size}": (f"micro-batch {size}", ".2g") for size in SIZES}
    return Bars("micro_batches", columns, rows, {"responses": RESPONSES, "verl": "0.9.1"})


if __name__ == "__main__":
    main(measure, answer)
