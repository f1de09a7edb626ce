"""Every variant on the page of studies: its text, and its meaning in columns of tokens."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import reduce
from pathlib import Path

import pytest
import torch
from strategies import awkward_batch
from torch import Tensor

from rlobj import Objective, load_preset, parse
from rlobj.base.yaml import load_yaml
from rlobj.objectives.penalties import ProxyKL
from rlobj.settings.layers import parse_setting
from rlobj.settings.presets import merge, preset_names

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "studies.md").read_text(encoding="utf-8").partition("\n## Variants of ")[2]
PRESETS = {"stapo": "stapo", "stare": "stare", "stare-gates": "stare", "ar": "ar", "lopti": "lopti"}
PROXY = re.compile(r"^\| `([\w-]+)` \| `(\w+): (.*?)` \|", re.MULTILINE)
FILE = re.compile(r"^```yaml\n# ([\w-]+)\.yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def variants() -> dict[str, Objective]:
    """The objective of each row of the tables, by `preset/variant`."""
    found, rows = {}, load_yaml((DOCS / "ablations.yaml").read_text(encoding="utf-8"))
    assert rows.keys() == PRESETS.keys()
    for group, preset in PRESETS.items():
        for row in rows[group]:
            settings = [parse_setting(text) for text in row["settings"]]
            config = reduce(merge, settings, load_preset(preset).config)
            found[f"{preset}/{row['name']}"] = Objective(**config["objective"])
    return found


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> dict[str, Objective]:
    """Also the objectives of the page's files."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in FILE.findall(PAGE):
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    files = {path.stem: load_preset(path).objective for path in folder.glob("*.yaml")}
    return {**VARIANTS, **files}


VARIANTS = variants()
PRESET_OBJECTIVES = [load_preset(name).objective for name in preset_names()]

# Columns of the tokens of decided responses.

[TABLE] = Objective().with_advantages([awkward_batch(4)])
REWARDS = TABLE.reward()[TABLE.decided_responses]
RESPONSE = TABLE.responses[TABLE.decided]
GROUP = TABLE.groups[RESPONSE]
ADVANTAGE, LOGPROB, OLD_LOGPROB = (
    getattr(TABLE, name)[TABLE.decided] for name in ("advantages", "logprobs", "old_logprobs")
)
ENTROPY, OLD_ENTROPY, PROXY_LOGPROB, REF_LOGPROB = (
    getattr(TABLE, name)[TABLE.decided]
    for name in ("entropy", "old_entropy", "proxy_logprobs", "ref_logprobs")
)
PROB, OLD_PROB = LOGPROB.exp(), OLD_LOGPROB.exp()
POSITIVE, NEGATIVE, ALL = ADVANTAGE > 0, ADVANTAGE < 0, ADVANTAGE == ADVANTAGE


def lowest(values, f, where=ALL, by=None, round=math.ceil, at_least=0, none_below=0) -> Tensor:
    """The tokens with the k lowest values of each population."""
    units = torch.zeros_like(RESPONSE) if by is None else by
    chosen = torch.zeros_like(where)
    for unit in units[where].unique():
        part = where & (units == unit)
        k = max(round(Fraction(f) * int(part.sum())), at_least)
        if k and k >= none_below:
            chosen |= part & (values <= values[part].sort().values[k - 1])
    return chosen


def without(rule: Tensor) -> Tensor:
    """The weights of an objective that drops the rule's tokens."""
    return (~rule).double()


def rare(sign, prob=PROB, entropy=ENTROPY, f="0.8", tau=0.002, **settings) -> Tensor:
    return sign & (prob < tau) & lowest(entropy, f, **settings)


def surprising(sign, values=LOGPROB, f="0.1", **settings) -> Tensor:
    return lowest(values, f, sign, at_least=1, **settings)


def weighted(*weights: tuple[Tensor, float]) -> Tensor:
    """The weight of the first population that has the token."""
    found = torch.ones(len(LOGPROB)).double()
    for tokens, weight in reversed(weights):
        found[tokens] = weight
    return found


S2T = rare(POSITIVE)
L_PLUS, L_MINUS = surprising(POSITIVE), surprising(NEGATIVE)
H_PLUS, H_MINUS = surprising(POSITIVE, -LOGPROB), surprising(NEGATIVE, -LOGPROB)
LINEAR, SIGMOID = 0.2 * OLD_PROB + 0.8, 2 * torch.sigmoid(5 * (OLD_PROB - 0.4))
CREDIT = ADVANTAGE * OLD_PROB
BALANCE = -CREDIT[POSITIVE].sum() / (SIGMOID * CREDIT)[~POSITIVE].sum()

WEIGHTS = {  # m·ω of each token
    "stapo/tau-p": without(rare(POSITIVE, tau=0.005)),
    "stapo/tau-h": without(rare(POSITIVE, f="0.5")),
    "stapo/tau-h-nats": without(POSITIVE & (PROB < 0.002) & (ENTROPY < 1.5)),
    "stapo/no-tau-h": without(POSITIVE & (PROB < 0.002)),
    "stapo/negative": without(rare(NEGATIVE)),
    "stapo/both-signs": without(rare(ADVANTAGE != 0)),
    "stapo/old-policy": without(rare(POSITIVE, OLD_PROB, OLD_ENTROPY)),
    "stapo/by-group": without(rare(POSITIVE, by=GROUP)),
    "stapo/by-response": without(rare(POSITIVE, by=RESPONSE)),
    "stapo/positive-only": without(rare(POSITIVE, where=POSITIVE)),
    "stapo/whole-response": without(torch.isin(RESPONSE, RESPONSE[S2T])),
    "stapo/attenuate": weighted((S2T, 0.1)),
    "stapo/full-divisor": without(S2T),
    "stare/fraction": weighted((surprising(POSITIVE, f="0.2"), 1.1)),
    "stare/large-models": weighted((L_PLUS, 1.05)),
    "stare/no-gate": weighted((L_PLUS, 1.1)),
    "stare/negative-only": weighted((L_MINUS, 0.9)),
    "stare/likely-positive": weighted((H_PLUS, 0.9)),
    "stare/likely-negative": weighted((H_MINUS, 1.1)),
    "stare/by-response": weighted((surprising(POSITIVE, by=RESPONSE), 1.1)),
    "stare/by-group": weighted((surprising(POSITIVE, by=GROUP), 1.1)),
    "stare/old-policy": weighted((surprising(POSITIVE, OLD_PROB), 1.1)),
    "stare/adaptive": weighted((L_PLUS, 1.11)),
    "ar/linear": 0.1 * OLD_PROB + 0.9,
    "ar/linear-negative-weight": LINEAR * weighted((~POSITIVE, 0.8)),
    "ar/linear-positive": torch.where(POSITIVE, LINEAR, 1),
    "ar/sigmoid": SIGMOID,
    "ar/sigmoid-negative": torch.where(POSITIVE, 1, SIGMOID),
    "ar/sigmoid-balanced": torch.where(POSITIVE, 1, SIGMOID * BALANCE),
    "ar/interval": ((OLD_PROB > 0.25) & (OLD_PROB <= 0.5)).double(),
    "ar/raft": weighted(),
    "ar/raft-linear": LINEAR,
    "stare-quadrants": weighted((L_PLUS | H_MINUS, 1.1), (L_MINUS | H_PLUS, 0.9)),
    "stare-adaptive-c2": weighted((L_PLUS, 1.11), (L_MINUS, 0.89)),
    "stapo-higher-tau": without(rare(POSITIVE, tau=0.005)),
}
GATES = {  # the number of the rollout
    "stare/gate-on-accuracy": (REWARDS > 0).double().mean(),
    "stare/gate-on-length": len(LOGPROB) / len(REWARDS),
    "stare/gate-on-negatives": OLD_ENTROPY[NEGATIVE].mean(),
    "stare/gate-on-quantile": OLD_ENTROPY[lowest(OLD_ENTROPY, "0.9")].max(),
}
MEDIAN = OLD_PROB.median()
PHASES = {  # the tokens of each phase but the last, which has the others
    "lopti/eta": [OLD_PROB < 0.5],
    "lopti/reverse": [OLD_PROB >= 0.5],
    "lopti/portion": [OLD_PROB < MEDIAN],
    "lopti/portion-reverse": [OLD_PROB >= MEDIAN],
    "lopti/three-phases": [OLD_PROB < 0.2, (OLD_PROB >= 0.2) & (OLD_PROB < 0.6)],
    "lopti/negative-first": [NEGATIVE],
}
UNLIKELY, UNLIKELY_POSITIVE = (
    lowest(LOGPROB, "0.01", sign, round=math.floor, none_below=2) for sign in (NEGATIVE, POSITIVE)
)
PROTECTED = {
    "lp-reg-fixed": UNLIKELY & (PROXY_LOGPROB > LOGPROB),
    "lp-reg-reference": UNLIKELY & (REF_LOGPROB > LOGPROB),
    "lp-reg-positive": (UNLIKELY | UNLIKELY_POSITIVE) & (PROXY_LOGPROB > LOGPROB),
}
MEANINGS = {**WEIGHTS, **GATES, **PHASES, **PROTECTED}


def test_every_variant_of_the_page_has_a_meaning_here_of_its_own(everything):
    assert everything.keys() == MEANINGS.keys()
    weights = {(name.partition("/")[0], *WEIGHTS[name].tolist()) for name in WEIGHTS}
    assert len(weights) == len(WEIGHTS), "this batch cannot tell two variants of a preset apart"


@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_a_variant_differs_from_its_preset_and_can_be_explained_and_read_back(name, everything):
    objective = everything[name]
    assert objective not in PRESET_OBJECTIVES
    assert objective == Objective(**objective.model_dump(mode="json", by_alias=True))
    assert str(objective.explain()).startswith("loss = ")
    for rule in (objective.drop_rule, objective.keep_rule, objective.weight, objective.shape):
        assert rule is None or parse(str(rule)) == rule


def shares(weights: Tensor) -> Tensor:
    return weights[TABLE.decided] * len(LOGPROB)


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_masks_and_weights_are_those_of_the_meaning(name, everything):
    objective, expected = everything[name], WEIGHTS[name]
    low = TABLE.replace(old_entropy=TABLE.old_entropy.clamp(max=0.25))  # opens the gates
    plan = objective.plan([TABLE], objective.observe([low]))
    kept = len(expected) if objective.divisor.over == "all" else int((expected != 0).sum())
    expected = expected * len(expected) / kept
    torch.testing.assert_close(shares(plan.weights[0]), expected, rtol=1e-12, atol=0)
    if "raft" in name:  # A = 1 for correct responses
        assert torch.equal(plan.advantages[0][TABLE.decided], POSITIVE.double())


@pytest.mark.parametrize("name", sorted(GATES))
def test_a_gate_is_on_while_its_number_is_below_its_target(name):
    objective, number = VARIANTS[name], float(GATES[name])
    gate = objective.controllers["W"]
    for target, value in ((number + 1e-6, 1.1), (number - 1e-6, 1.0)):
        moved = objective.replace(controllers={"W": gate.model_copy(update={"target": target})})
        memory = moved.observe([TABLE])["W"]
        assert memory == {"value": value, "measured": pytest.approx(number)}


@pytest.mark.parametrize("name", sorted(PHASES))
def test_phases_are_those_of_the_meaning(name):
    tokens = [*PHASES[name], ~torch.stack(PHASES[name]).any(0)]
    for phase, expected in zip(VARIANTS[name].phases, tokens, strict=True):
        torch.testing.assert_close(shares(phase.plan([TABLE]).weights[0]), expected.double())


@pytest.mark.parametrize("name", sorted(PROTECTED))
def test_protected_tokens_are_those_of_the_meaning(name, everything):
    objective, expected = everything[name], PROTECTED[name]
    found = shares(objective.plan([TABLE]).penalties[0][0])
    torch.testing.assert_close(found, expected.double())
    assert expected.any()
    assert name == "lp-reg-fixed" or objective.surrogate.rules() == (objective.penalties[0].where,)


KL_TYPES = {"kl": "k1", "abs": "abs", "mse": "k2", "low-var-kl": "k3"}


def test_a_setting_of_the_proxy_means_what_the_release_computes():
    rows = PROXY.findall(PAGE)
    found = {name: ProxyKL(**parse_setting(f"{key}={value}")) for name, key, value in rows}
    assert found == {
        **{f"kl-type-{name}": ProxyKL(estimator=kind) for name, kind in KL_TYPES.items()},
        "fixed-threshold": ProxyKL(relative=False),
        "temperature": ProxyKL(temperature=0.6),
        "current-policy": ProxyKL(policy="current"),
    }
