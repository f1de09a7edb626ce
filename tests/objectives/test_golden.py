"""Loss, gradient, advantages and KL equal golden numbers: of released implementations, to 1e-8, and
of every preset on four rollouts with each special case of the tables.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from strategies import fitting, gradients, leaf
from torch import Tensor

from rlobj import Objective, TokenBatch, load_preset
from rlobj.objectives import advantages, functional
from rlobj.objectives.controllers import Gate
from rlobj.objectives.divisors import FixedLength, TokenMean
from rlobj.objectives.penalties import KL, ProxyKL
from rlobj.objectives.surrogates import Cispo, Clip, Switch, Unclipped
from rlobj.settings.presets import preset_names

CASES, RELEASED, LATE, GDPO, EVERY = (
    json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
    for name in ("objectives", "released", "late", "gdpo", "presets")
)
ROLLOUTS, PRESETS = EVERY["inputs"], EVERY["presets"]
COLUMNS = ("logprobs", "old_logprobs", "ref_logprobs", "entropy", "proxy_logprobs", "advantages")
ENTROPY = "entropy.top(0.2, round='floor', at_least=1)"
PROTECTED = "logprob.bottom(0.1, within=advantage < 0, round='floor', none_below=2)"
ADVANTAGES = {
    "grpo": advantages.GroupNormalized(),
    "grpo-no-std": advantages.GroupCentered(),
    "rloo": advantages.LeaveOneOut(),
    "reinforce++": advantages.BatchWhitened(),
    "reinforce++-baseline": advantages.GroupCenteredBatchWhitened(),
    "opo": advantages.LengthWeighted(),
}
ESTIMATORS = {
    "kl": functional.k1,
    "abs": functional.abs_log_ratio,
    "mse": functional.k2,
    "low_var_kl": functional.k3,
}


def preset(name: str, **fields: Any) -> Objective:
    return load_preset(name).objective.replace(**fields)


def stare(name: str, gate: str) -> Objective:
    """The preset with its gate open or closed, as in the case."""
    objective = load_preset(name).objective
    target = 1e9 if gate == "on" else 1e-9
    gates = {"W": Gate(target=target, on=1.1), "M": Gate(target=target, on=0.9)}
    return objective.replace(controllers={key: gates[key] for key in objective.controllers})


def dual(clip: tuple[float, float]) -> Objective:
    return preset("dapo", surrogate=Clip(low=clip[0], high=clip[1], dual=3.0))


def lp_reg() -> Objective:
    rule = f"{PROTECTED} & (proxy_gap > 0)"
    surrogate = Switch(rule, Unclipped(), Clip(low=1.0, high=9.0))
    return preset("lp-reg", surrogate=surrogate, penalties=[ProxyKL(where=rule)])


def kl_cov() -> Objective:
    where = "covariance.top(0.02, round='floor', at_least=1)"
    return preset("kl-cov", penalties=[KL(estimator="abs", against="old", where=where)])


OBJECTIVES: dict[str, Any] = {
    "grpo/seq-mean-token-mean": lambda case: preset("grpo"),
    "grpo/token-mean": lambda case: preset("grpo", divisor=TokenMean()),
    "dapo/token-mean": lambda case: preset("dapo"),
    "dual-clip/token-mean": lambda case: dual(case["params"]["clip"]),
    "dual-clip-bites/token-mean": lambda case: dual(case["params"]["clip"]),
    "dr-grpo/seq-sum-fixed": lambda case: preset("dr-grpo", divisor=FixedLength(length=20)),
    "gspo": lambda case: preset("gspo"),
    "gspo-wide": lambda case: preset("gspo", surrogate=Clip(low=0.2, high=0.2, ratio="sequence")),
    "sapo": lambda case: preset("sapo"),
    "cispo": lambda case: preset("cispo", surrogate=Cispo(max=1.28, min=0.8)),
    "gmpo": lambda case: preset("gmpo"),
    "kl-cov": lambda case: kl_cov(),
    "lp-reg": lambda case: lp_reg(),
    "20-entropy": lambda case: preset("20-entropy", keep=ENTROPY),
    "stare-O1/gate-on": lambda case: stare("stare", "on"),
    "stare-O1/gate-off": lambda case: stare("stare", "off"),
    "stare-C2/gate-on": lambda case: stare("stare-c2", "on"),
    "stare-C2/gate-off": lambda case: stare("stare-c2", "off"),
}


def kind(*heads: str) -> list[Any]:
    """The cases whose name begins with one of these prefixes, with readable ids."""
    found = [case for case in CASES if case["name"].startswith(heads)]
    return [pytest.param(case, id=f"{case['name']}-{case['seed']}") for case in found]


def column(case: dict[str, Any], name: str) -> Tensor:
    return torch.tensor(case[name], dtype=torch.float64)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-8, rtol=0)


def test_every_golden_case_is_covered() -> None:
    covered = [*kind("advantage/"), *kind("kl/"), *kind("advantage-reweighting")]
    assert len(covered) + len(kind(*OBJECTIVES)) == len(CASES) == 87


@pytest.mark.parametrize("case", kind(*OBJECTIVES))
def test_loss_and_gradient_equal_the_released_code(case: dict[str, Any]) -> None:
    columns = {name: column(case, name) for name in COLUMNS}
    columns["logprobs"].requires_grad_()
    batch = TokenBatch(
        lengths=torch.tensor(case["lengths"]),
        groups=torch.tensor(case["group"]),
        old_entropy=columns["entropy"],
        **columns,
    )
    loss = OBJECTIVES[case["name"]](case)(batch).loss
    loss.backward()
    close(loss.detach(), column(case, "loss"))
    close(columns["logprobs"].grad, column(case, "grad"))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", kind(*OBJECTIVES))
def test_half_precision_columns_are_computed_in_float32(case: dict[str, Any]) -> None:
    """The loss of rounded numbers is as exact as if they were given in float32."""
    results = []
    for wide in (False, True):
        columns = {name: column(case, name).bfloat16() for name in COLUMNS}
        leaf = columns["logprobs"].requires_grad_()
        given = {name: x.double() for name, x in columns.items()} if wide else columns
        batch = TokenBatch(case["lengths"], case["group"], old_entropy=given["entropy"], **given)
        loss = OBJECTIVES[case["name"]](case)(batch).loss
        loss.backward()
        results.append((loss.double(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_the_sequence_ratio_of_a_long_half_precision_response_is_exact() -> None:
    """1 step of bfloat16 on a twelfth of 4,096 tokens; a mean in bfloat16 loses it."""
    old = torch.full((1, 4096), -0.1875, dtype=torch.bfloat16)
    new = old.clone()
    new[0, ::12] += 2**-10
    new.requires_grad_()
    batch = TokenBatch.from_padded(torch.ones(1, 4096), new, old_logprobs=old, advantages=[1.0])
    loss = preset("gspo", surrogate=Clip(ratio="sequence"))(batch).loss
    loss.backward()
    moved = float((new.detach().double() - old.double()).mean())
    assert moved > 5e-5
    assert -loss.item() - 1 == pytest.approx(moved, rel=1e-2)
    torch.testing.assert_close(new.grad, torch.full_like(new, -1 / 4096))


@pytest.mark.parametrize("case", kind("advantage/"))
def test_advantages_equal_the_released_code(case: dict[str, Any]) -> None:
    lengths = torch.tensor(case["lengths"])
    estimate = ADVANTAGES[case["name"].partition("/")[2]]
    actual = estimate(column(case, "rewards"), torch.tensor(case["group"]), lengths)
    close(actual.repeat_interleave(lengths), column(case, "advantages"))


@pytest.mark.parametrize("case", GDPO, ids=lambda case: f"{case['source']}-{case['seed']}")
def test_gdpo_advantages_equal_the_released_code(case: dict[str, Any]) -> None:
    """Of verl, which is the preset, and of TRL, as the preset's comment writes it."""
    estimate = load_preset("gdpo").objective.advantage
    if case["source"].startswith("TRL"):
        each = advantages.GroupNormalized(epsilon=1e-4)
        estimate = advantages.Decoupled(each=each, then=each.model_copy(update={"scale": "batch"}))
    group, lengths = torch.tensor(case["group"]), torch.tensor(case["lengths"])
    actual = estimate(column(case, "rewards"), group, lengths, case["weights"])
    close(actual, column(case, "advantages"))


@pytest.mark.parametrize("case", kind("kl/"))
def test_kl_values_equal_the_released_code(case: dict[str, Any]) -> None:
    estimate = ESTIMATORS[case["name"].partition("/")[2]]
    close(estimate(column(case, "logprobs"), column(case, "ref_logprobs")), column(case, "values"))


@pytest.mark.parametrize("case", kind("advantage-reweighting"))
def test_advantage_reweighting_equals_the_released_code(case: dict[str, Any]) -> None:
    old, given = column(case, "old_logprobs"), column(case, "advantages")
    lengths = torch.tensor(case["lengths"])
    batch = TokenBatch(lengths, torch.tensor(case["group"]), old, advantages=given)
    plan = load_preset("ar-lopti").objective.replace(penalties=[]).plan([batch])
    close(plan.weights[0] * len(given) * given, column(case, "reweighted"))


# What released packages compute; `golden/generate.py` calls the packages.


SETTINGS: dict[str, dict[str, Any]] = {
    "fipo": {"drop": None},  # ms-swift does not drop responses
    "opsm": {"drop": "(advantage < 0) & ((old_logprob - logprob).mean(by='response') > 0.1)"},
    "wapo": {"surrogate": Clip(low=1.0, high=9.0, max_log_ratio=None, against="sampler")},
}
"""Settings of a case that differ from the preset's."""


def batch_of(case: dict[str, Any]) -> TokenBatch:
    names = (*COLUMNS[:4], "sampler_logprobs", "collision", "advantages")
    columns = {name: column(case, name) for name in names}
    columns["logprobs"].requires_grad_()
    columns["old_collision"] = columns.pop("collision")  # verl scores the rollout's policy
    return TokenBatch(
        lengths=torch.tensor(case["lengths"]),
        groups=torch.tensor(case["groups"]),
        rewards=column(case, "rewards"),
        old_entropy=columns["entropy"],
        rollouts=case.get("rollouts"),
        turn=case.get("turn"),
        turn_reward=case.get("turn_reward"),
        columns={
            "teacher_logprob": column(case, "ref_logprobs"),
            **{name: column(case, name) for name in ("state",) if name in case},
        },
        **columns,
    )


@pytest.mark.parametrize("case", RELEASED, ids=lambda case: f"{case['name']}-{case['seed']}")
def test_a_preset_equals_what_its_package_computes(case: dict[str, Any]) -> None:
    """The loss and its gradient, or A as the surrogate reads it, which verl has in float32."""
    objective, batch = preset(case["name"], **SETTINGS.get(case["name"], {})), batch_of(case)
    if "loss" not in case:
        found = objective.plan([batch.replace(advantages=None)]).advantages[0]
        torch.testing.assert_close(found, column(case, "advantages"), atol=1e-6, rtol=0)
        return
    loss = objective(batch).loss
    loss.backward()
    close(loss.detach(), column(case, "loss"))
    close(batch.logprobs.grad, column(case, "grad"))  # type: ignore[arg-type]


# What the releases of late 2026 compute; `sources` names their lines. Commit
# 20c6535d has the script that fetched and ran them, and that of gdpo.json; bpo, flash-reinforce and
# prime-rl came later, from the text of the functions that are named.


def test_every_late_preset_has_numbers_of_its_release() -> None:
    names = "agent-lightning bapo bpo codapo cppo delight flash-reinforce gigpo kpop prime-rl steer"
    assert sorted({case["name"] for case in LATE}) == [*names.split(), "up-grpo", "wapo"]
    assert all(case["sources"] for case in LATE)


@pytest.mark.parametrize("case", LATE, ids=lambda case: f"{case['name']}-{case['seed']}")
def test_a_late_preset_equals_what_its_release_computes(case: dict[str, Any]) -> None:
    """The loss and its gradient, or A as the surrogate reads it."""
    objective, batch = preset(case["name"], **SETTINGS.get(case["name"], {})), batch_of(case)
    if "loss" not in case:
        [actual] = objective.plan([batch.replace(advantages=None)]).advantages
        close(actual, column(case, "advantages"))
        return
    loss = objective(batch).loss
    loss.backward()
    torch.testing.assert_close(batch.logprobs.grad, column(case, "grad"), rtol=1e-8, atol=1e-14)
    if case["name"] not in ("up-grpo", "prime-rl"):  # theirs have our gradient, and other values
        close(loss.detach(), column(case, "loss"))


# Every preset. Where no release runs here, the gradients are those of plain loops over tokens, and
# elsewhere those of the preset as it equalled its definition in Python: both last in 5e1532b2. The
# loops of the presets of autumn 2026 are in test_autumn_presets.


def rollout(kind: str) -> TokenBatch:
    def tensor(values: list[Any]) -> Tensor:
        whole = all(isinstance(value, int) for value in values)
        numbers = [math.nan if value is None else value for value in values]
        return torch.tensor(numbers, dtype=torch.int64 if whole else torch.float64)

    columns = dict(ROLLOUTS[kind])
    own = {name: tensor(values) for name, values in columns.pop("columns").items()}
    return TokenBatch(**{name: tensor(x) for name, x in columns.items()}, columns=own)


def numbers_of(objective: Objective, kind: str) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by log-probs and by entropies, on a rollout of presets.json."""
    table = fitting(objective, rollout(kind))
    if not objective.reads_rewards:
        table = table.select(table.decided_responses.nonzero()[:, 0])
    table, old_entropy = leaf(table), table.column("old_entropy", "the test")
    low = table.replace(old_entropy=old_entropy.clamp(max=0.25))  # opens gates
    loss = objective.loss(table, objective.plan([table], objective.observe([low]))).loss
    loss.backward()
    return loss.detach(), gradients(table)


def test_every_preset_has_golden_numbers() -> None:
    assert sorted({*PRESETS, "gkd"}) == preset_names()  # gkd: test_divergences


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_has_the_golden_definition_loss_and_gradient(name: str) -> None:
    objective = load_preset(name).objective
    assert objective == Objective(**PRESETS[name]["definition"])
    for kind, case in PRESETS[name]["numbers"].items():
        loss, found = numbers_of(objective, kind)
        expected = column(case, "gradient")
        bonus = column(case, "entropy_gradient") if "entropy_gradient" in case else 0 * expected
        tolerance = {"rtol": 1e-10, "atol": 1e-13}
        torch.testing.assert_close(found, torch.stack([expected, bonus]), **tolerance)
        torch.testing.assert_close(loss, column(case, "loss"), **tolerance)
