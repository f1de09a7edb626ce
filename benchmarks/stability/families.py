"""What a task and a policy need beside the settings that all runs share.

rlobj's own tasks come with a policy. A second family, `countdown`, and policies of another size are
prepared here in the same way, once for a study, in DIR/policies.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import driver
from benchmarks.stability import countdown
from benchmarks.stability.countdown import COUNTDOWN
from benchmarks.stability.regimes import Setting
from rlobj.base.errors import RunError
from rlobj.config.embedded_profile import PROFILES
from rlobj.data.tasks import TASKS

PREPARED = [task for task in PROFILES if task.startswith("scratchpad")] + [COUNTDOWN]
"""The tasks that a policy of any size can be prepared for."""
FAMILIES = [*PROFILES, COUNTDOWN]
USUAL = "3x64"
"""Layers and width of rlobj's policy for scratchpads."""


def arguments(setting: Setting, runs: Path | None) -> dict[str, Any]:
    """The arguments of `rlobj.train` that name problems, reward and policy.

    Args:
        setting: of the run.
        runs: the folder of the study; None = the policy is only named.
    """
    given: dict[str, Any] = {"data": setting.task}
    if setting.task == COUNTDOWN:
        given = {
            "data": countdown.rows("train"),
            "eval_on": countdown.rows("test"),
            "reward": "benchmarks.stability.countdown:reward",
        }
    if setting.task == COUNTDOWN or setting.policy:
        given["model"] = str(folder(setting, runs or Path()))
    return given


def folder(setting: Setting, runs: Path) -> Path:
    """Where the prepared policy of a setting is."""
    return runs / "policies" / f"{setting.task}-{setting.policy or USUAL}"


def prepare_missing(settings: Iterable[Setting], runs: Path, console: Console) -> None:
    """Prepare the policies that settings need and that a study does not have."""
    for setting in sorted(settings, key=str):
        own = setting.task == COUNTDOWN or setting.policy
        if own and not (out := folder(setting, runs)).exists():
            console.print(f"Preparing the policy {out.name}, about a minute.")
            process = multiprocessing.get_context("spawn").Process(
                target=_prepare, args=(setting, runs)
            )
            process.start()
            process.join()
            if process.exitcode:
                raise RunError(f"the policy {out.name} could not be prepared; see above")


def _prepare(setting: Setting, runs: Path) -> None:
    driver.end_with_parent()
    prepare(setting, runs)


def prepare(setting: Setting, runs: Path) -> None:
    """Prepare the policy of a setting in this process.

    Its supervised training is that of rlobj's policy for scratchpads, with another size or task.
    """
    from dataclasses import replace

    import torch
    from transformers import Qwen3ForCausalLM

    from rlobj.models.embedded import RECIPES, build_policy, build_tokenizer
    from rlobj.models.embedded.warm_start import warm_start

    out = folder(setting, runs)
    recipe, pairs = RECIPES["scratchpad"], None
    if setting.task == COUNTDOWN:
        recipe = replace(recipe, steps=countdown.WARM_STEPS)
        pairs = countdown.demonstrations()
    layers, width = map(int, (setting.policy or USUAL).split("x"))
    config = build_policy(0, recipe.alphabet, layers, width * 3 // 2).config
    config.hidden_size, config.num_attention_heads = width, max(width // 32, 1)
    config.num_key_value_heads = config.num_attention_heads
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    tokenizer = build_tokenizer(recipe.alphabet)
    warm_start(model, tokenizer, pairs or TASKS[setting.task].demonstrations(), recipe, seed=0)
    partial = out.with_name(f".{out.name}")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.replace(out)
