"""Writes gdpo.json: GDPO's advantages by verl 0.9.1 and TRL 1.16.0, in float64.

    pip download --no-deps verl==0.9.1 trl==1.16.0, and unzip both into FOLDER
    python tests/objectives/golden/gdpo.py FOLDER

Their functions are taken out of their files and run here, because the packages need GPUs' libraries
when imported. verl's float32 is replaced by float64; nothing else is changed.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

FOLDER = Path(sys.argv[1])
torch.set_default_dtype(torch.float64)  # TRL divides integers, which gives the default type


def functions(file: str, *names: str) -> str:
    """The source of some functions, without decorators."""
    found = []
    for node in ast.parse((FOLDER / file).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list = []
            found.append(ast.unparse(node))
    assert len(found) == len(names), (file, names)
    return "\n".join(["from __future__ import annotations", *found])


def run(source: str, space: dict[str, Any]) -> dict[str, Any]:
    exec(compile(source, "released", "exec"), space)
    return space


def verl(case: dict[str, Any]) -> list[float]:
    tools = run(
        functions(
            "verl/utils/torch_functional.py",
            "masked_sum",
            "masked_mean",
            "masked_var",
            "masked_whiten",
        ),
        {"torch": torch},
    )
    names = ("compute_gdpo_outcome_advantage", "compute_grpo_outcome_advantage")
    source = functions("verl/trainer/ppo/core_algos.py", *names).replace("float32", "float64")
    space = {"torch": torch, "np": np, "defaultdict": defaultdict}
    space["verl_F"] = SimpleNamespace(**tools)
    estimate = run(source, space)[names[0]]
    lengths = torch.tensor(case["lengths"])
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).double()
    scores = np.asarray(case["rewards"])
    keys = [f"reward {k}" for k in range(scores.shape[1])]
    advantages, _ = estimate(
        mask,
        mask,
        np.asarray(case["group"]),
        config={"gdpo_reward_keys": keys, "gdpo_reward_weights": case["weights"]},
        non_tensor_batch={key: scores[:, k] for k, key in enumerate(keys)},
        batch={"prompts": torch.zeros(len(lengths), 0), "attention_mask": mask.long()},
    )
    return advantages[:, 0].tolist()


def trl(case: dict[str, Any]) -> list[float]:
    space = run(functions("trl/trainer/utils.py", "nanstd"), {"torch": torch})
    tree = ast.parse((FOLDER / "trl/trainer/grpo_trainer.py").read_text())
    (branch,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("== 'normalize_then_sum'")
    )
    rewards = torch.tensor(case["rewards"], dtype=torch.float64)
    weights = torch.tensor(case["weights"] or [1.0] * rewards.shape[1], dtype=torch.float64)
    space |= {
        "self": SimpleNamespace(reward_weights=weights, reward_funcs=[None] * rewards.shape[1]),
        "rewards_per_func": rewards,
        "num_generations": case["group"].count(case["group"][0]),
        "unscorable_mask": rewards.isnan().all(1),
        "device": "cpu",
    }
    run("\n".join(map(ast.unparse, branch.body)), space)
    return space["advantages"].tolist()


def main() -> None:
    cases = []
    for seed in range(4):
        random = torch.Generator().manual_seed(seed)
        count = 2 + seed % 2
        case: dict[str, Any] = {
            "seed": seed,
            "lengths": torch.randint(1, 9, (12,), generator=random).tolist(),
            "group": [i // 4 for i in range(12)],
            "rewards": (torch.randint(0, 4, (12, count), generator=random) / 2).tolist(),
            "weights": [None, [1.0, 0.5, 2.0][:count]][seed // 2],
        }
        case["rewards"][:4] = [[1.0] * count] * 4  # no signal
        for source, released in (("verl 0.9.1", verl), ("TRL 1.16.0", trl)):
            cases.append({**case, "source": source, "advantages": released(case)})
    path = Path(__file__).with_suffix(".json")
    path.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


main()
