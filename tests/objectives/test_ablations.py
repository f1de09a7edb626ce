"""Every variant on the page of ablations: its text, and its meaning in loops over tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from strategies import awkward_batch

from rlobj import Objective, load_preset, parse
from rlobj.config.layers import parse_setting
from rlobj.config.presets import merge, preset_names, read_yaml
from rlobj.objectives.penalties import ProxyKL

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "ablations.md"
PRESETS = {"stapo": "stapo", "stare": "stare", "stare-gates": "stare", "ar": "ar", "lopti": "lopti"}
_ROW = re.compile(r"^\| `([\w-]+)` \| (.*?) \| (.*) \|$", re.MULTILINE)
_FILE = re.compile(r"^```yaml\n# ([\w-]+)\.yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def variants() -> dict[str, Objective]:
    """The objective of each row of the tables, by `preset/variant`."""
    found, rows = {}, yaml.safe_load((DOCS / "ablations.yaml").read_text(encoding="utf-8"))
    assert rows.keys() == PRESETS.keys()
    for group, preset in PRESETS.items():
        for row in rows[group]:
            settings = [parse_setting(text) for text in row["settings"]]
            assert settings, f"{group}: the row {row['name']} has no settings"
            config = reduce(merge, settings, load_preset(preset).config)
            found[f"{preset}/{row['name']}"] = Objective(**config["objective"])
    return found


def files(folder: Path) -> dict[str, Objective]:
    for name, text in _FILE.findall(PAGE.read_text(encoding="utf-8")):
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return {path.stem: load_preset(path).objective for path in folder.glob("*.yaml")}


VARIANTS = variants()
PRESET_OBJECTIVES = [load_preset(name).objective for name in preset_names()]


Token = SimpleNamespace  # of a decided response, with its columns as plain numbers
[TABLE] = Objective().with_advantages([awkward_batch(4)])
REWARDS: list[float] = TABLE.reward().tolist()


def tokens_of() -> list[Token]:
    names = ("advantages", "logprobs", "old_logprobs", "entropy", "old_entropy")
    names += ("proxy_logprobs", "ref_logprobs")
    columns = {name: getattr(TABLE, name).tolist() for name in names}
    found = []
    for place, response in enumerate(TABLE.responses.tolist()):
        token = Token(**{name: column[place] for name, column in columns.items()})
        if math.isnan(token.advantages) or math.isnan(REWARDS[response]):
            continue
        token.place, token.response, token.group = place, response, int(TABLE.groups[response])
        token.advantage, token.logprob = token.advantages, token.logprobs
        token.surprisal, token.prob = -token.logprob, math.exp(token.logprob)
        token.old_prob = math.exp(token.old_logprobs)
        token.proxy_gap = token.proxy_logprobs - token.logprob
        token.ref_gap = token.ref_logprobs - token.logprob
        found.append(token)
    return found


TOKENS = tokens_of()

Test = Callable[[Token], Any]


def extreme(value: str, f: str, side: int = 1, where: Test | None = None, **settings: Any) -> set:
    """The places of the k lowest (side 1) or highest (−1) tokens of each population."""
    by, rounding = settings.get("by"), settings.get("round", math.ceil)
    parts: dict[Any, list[tuple[float, int]]] = {}
    for token in TOKENS:
        if where is None or where(token):
            key = getattr(token, by) if by else None
            parts.setdefault(key, []).append((side * getattr(token, value), token.place))
    chosen = set()
    for part in parts.values():
        k = max(rounding(Fraction(f) * len(part)), settings.get("at_least", 0))
        if k and k >= settings.get("none_below", 0):
            cut = sorted(part)[k - 1][0]
            chosen |= {place for number, place in part if number <= cut}
    return chosen


def positive(token: Token) -> bool:
    return token.advantage > 0


def negative(token: Token) -> bool:
    return token.advantage < 0


def without(rule: Test) -> Test:
    """The weight of an objective that drops the rule's tokens."""
    return lambda token: 0.0 if rule(token) else 1.0


def spurious(sign: Test, policy: str = "", f: str = "0.8", tau: float = 0.002, **by: Any) -> Test:
    low = extreme(f"{policy}entropy", f, **by)
    return lambda x: sign(x) and getattr(x, f"{policy}prob") < tau and x.place in low


def weighted(places: set, weight: float, *others: tuple[set, float]) -> Test:
    def weight_of(token: Token) -> float:
        for chosen, number in ((places, weight), *others):
            if token.place in chosen:
                return number
        return 1.0

    return weight_of


def surprising(sign: Test, side: int = -1, f: str = "0.1", value: str = "surprisal", **by: Any):
    return extreme(value, f, side, sign, at_least=1, **by)


def sigmoid(token: Token) -> float:
    return 2 / (1 + math.exp(-5 * (token.old_prob - 0.4)))


def balanced(token: Token) -> float:
    up = sum(x.advantage * x.old_prob for x in TOKENS if positive(x))
    down = -sum(sigmoid(x) * x.advantage * x.old_prob for x in TOKENS if not positive(x))
    return 1.0 if positive(token) else sigmoid(token) * up / down


def linear(token: Token, alpha: float = 0.2) -> float:
    return alpha * token.old_prob + 1 - alpha


S2T = spurious(positive)
BAD = {token.response for token in TOKENS if S2T(token)}
L_PLUS, L_MINUS = surprising(positive), surprising(negative)
H_PLUS, H_MINUS = surprising(positive, 1), surprising(negative, 1)

WEIGHTS: dict[str, Test] = {  # m·ω of each token of a decided response
    "stapo/tau-p": without(spurious(positive, tau=0.005)),
    "stapo/tau-h": without(spurious(positive, f="0.5")),
    "stapo/tau-h-nats": without(lambda x: positive(x) and x.prob < 0.002 and x.entropy < 1.5),
    "stapo/no-tau-h": without(lambda x: positive(x) and x.prob < 0.002),
    "stapo/negative": without(spurious(negative)),
    "stapo/both-signs": without(spurious(lambda x: x.advantage != 0)),
    "stapo/old-policy": without(spurious(positive, "old_")),
    "stapo/by-group": without(spurious(positive, by="group")),
    "stapo/by-response": without(spurious(positive, by="response")),
    "stapo/positive-only": without(spurious(positive, where=positive)),
    "stapo/whole-response": without(lambda x: x.response in BAD),
    "stapo/attenuate": lambda x: 0.1 if S2T(x) else 1.0,
    "stapo/full-divisor": without(S2T),
    "stare/fraction": weighted(surprising(positive, f="0.2"), 1.1),
    "stare/large-models": weighted(L_PLUS, 1.05),
    "stare/no-gate": weighted(L_PLUS, 1.1),
    "stare/negative-only": weighted(L_MINUS, 0.9),
    "stare/likely-positive": weighted(H_PLUS, 0.9),
    "stare/likely-negative": weighted(H_MINUS, 1.1),
    "stare/by-response": weighted(surprising(positive, by="response"), 1.1),
    "stare/by-group": weighted(surprising(positive, by="group"), 1.1),
    "stare/old-policy": weighted(surprising(positive, 1, value="old_prob"), 1.1),
    "stare/adaptive": weighted(L_PLUS, 1.11),
    "ar/linear": lambda x: linear(x, 0.1),
    "ar/linear-negative-weight": lambda x: linear(x) * (1 if positive(x) else 0.8),
    "ar/linear-positive": lambda x: linear(x) if positive(x) else 1.0,
    "ar/sigmoid": sigmoid,
    "ar/sigmoid-negative": lambda x: 1.0 if positive(x) else sigmoid(x),
    "ar/sigmoid-balanced": balanced,
    "ar/interval": lambda x: float(0.25 < x.old_prob <= 0.5),
    "ar/raft": lambda x: 1.0,
    "ar/raft-linear": linear,
    "stare-quadrants": weighted(L_PLUS | H_MINUS, 1.1, (L_MINUS | H_PLUS, 0.9)),
    "stare-adaptive-c2": weighted(L_PLUS, 1.11, (L_MINUS, 0.89)),
    "stapo-higher-tau": without(spurious(positive, tau=0.005)),
}
GATES: dict[str, Callable[[], float]] = {  # the number of the rollout
    "stare/gate-on-accuracy": lambda: share(lambda reward: reward > 0),
    "stare/gate-on-length": lambda: len(TOKENS) / len(decided()),
    "stare/gate-on-negatives": lambda: mean(x.old_entropy for x in TOKENS if negative(x)),
    "stare/gate-on-quantile": lambda: sorted(x.old_entropy for x in TOKENS)[
        math.ceil(Fraction("0.9") * len(TOKENS)) - 1
    ],
}
MEDIAN = sorted(x.old_prob for x in TOKENS)[math.ceil(len(TOKENS) / 2) - 1]
PHASES: dict[str, list[Test]] = {
    "lopti/eta": [lambda x: x.old_prob < 0.5],
    "lopti/reverse": [lambda x: x.old_prob >= 0.5],
    "lopti/portion": [lambda x: x.old_prob < MEDIAN],
    "lopti/portion-reverse": [lambda x: x.old_prob >= MEDIAN],
    "lopti/three-phases": [lambda x: x.old_prob < 0.2, lambda x: x.old_prob < 0.6],
    "lopti/negative-first": [negative],
}


def low_probability(sign: Test) -> set:
    return extreme("logprob", "0.01", where=sign, round=math.floor, none_below=2)


PROTECTED: dict[str, Test] = {
    "lp-reg-fixed": lambda x: x.place in low_probability(negative) and x.proxy_gap > 0,
    "lp-reg-reference": lambda x: x.place in low_probability(negative) and x.ref_gap > 0,
    "lp-reg-positive": lambda x: (
        x.place in low_probability(negative) | low_probability(positive) and x.proxy_gap > 0
    ),
}


def decided() -> list[float]:
    """The rewards of the decided responses, also of those without tokens."""
    return [reward for reward in REWARDS if not math.isnan(reward)]


def share(test: Callable[[float], bool]) -> float:
    return sum(map(test, decided())) / len(decided())


def mean(numbers: Any) -> float:
    found = list(numbers)
    return sum(found) / len(found)


def observed(objective: Objective) -> dict[str, Any]:
    """The state after a rollout with low entropy: gates on the entropy are open."""
    low = TABLE.replace(old_entropy=TABLE.old_entropy.clamp(max=0.25))
    return objective.observe([low])


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Objective]:
    return {**VARIANTS, **files(tmp_path_factory.mktemp("page"))}


def test_every_variant_of_the_page_has_a_meaning_here(everything: dict[str, Objective]) -> None:
    assert sorted(everything) == sorted({**WEIGHTS, **GATES, **PHASES, **PROTECTED})


@pytest.mark.parametrize("name", sorted({**WEIGHTS, **GATES, **PHASES, **PROTECTED}))
def test_a_variant_differs_from_its_preset_and_can_be_explained_and_read_back(
    name: str, everything: dict[str, Objective]
) -> None:
    objective = everything[name]
    assert objective not in PRESET_OBJECTIVES
    assert objective == Objective(**objective.model_dump(mode="json", by_alias=True))
    assert str(objective.explain()).startswith("loss = ")
    for rule in (objective.drop_rule, objective.keep_rule, objective.weight, objective.shape):
        assert rule is None or parse(str(rule)) == rule


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_masks_and_weights_equal_loops_over_tokens(
    name: str, everything: dict[str, Objective]
) -> None:
    objective = everything[name]
    expected = [float(WEIGHTS[name](token)) for token in TOKENS]
    whole = objective.divisor.over == "all"
    z = len(TOKENS) if whole else sum(number != 0 for number in expected)
    plan = objective.plan([TABLE], observed(objective))
    found = [plan.weights[0][token.place].item() * z for token in TOKENS]
    assert found == pytest.approx(expected, rel=1e-12)
    assert name == "ar/raft" or len(set(expected)) > 1


@pytest.mark.parametrize("name", ["ar/raft", "ar/raft-linear"])
def test_raft_has_the_advantage_one_for_correct_responses(name: str) -> None:
    plan = VARIANTS[name].plan([TABLE])
    found = [plan.advantages[0][token.place].item() for token in TOKENS]
    assert found == [float(positive(token)) for token in TOKENS]


@pytest.mark.parametrize("name", sorted(GATES))
def test_a_gate_is_on_while_its_number_is_below_its_target(name: str) -> None:
    objective, number = VARIANTS[name], GATES[name]()
    gate = objective.controllers["W"]
    for target, value in ((number + 1e-6, 1.1), (number - 1e-6, 1.0)):
        moved = objective.replace(controllers={"W": gate.model_copy(update={"target": target})})
        memory = moved.observe([TABLE])["W"]
        assert memory == {"value": value, "measured": pytest.approx(number)}


@pytest.mark.parametrize("name", sorted(PHASES))
def test_phases_equal_loops_over_tokens(name: str) -> None:
    rules = PHASES[name]
    phase_of = [
        next((i for i, rule in enumerate(rules) if rule(token)), len(rules)) for token in TOKENS
    ]
    phases = VARIANTS[name].phases
    assert len(phases) == len(rules) + 1
    for number, phase in enumerate(phases):
        weights = phase.plan([TABLE]).weights[0]
        found = [weights[token.place].item() * len(TOKENS) for token in TOKENS]
        assert found == pytest.approx([float(i == number) for i in phase_of])


@pytest.mark.parametrize("name", sorted(PROTECTED))
def test_protected_tokens_equal_loops_over_tokens(
    name: str, everything: dict[str, Objective]
) -> None:
    objective = everything[name]
    expected = [float(PROTECTED[name](token)) for token in TOKENS]
    shares = objective.plan([TABLE]).penalties[0][0]
    assert [shares[token.place].item() * len(TOKENS) for token in TOKENS] == pytest.approx(expected)
    assert any(expected)
    assert name == "lp-reg-fixed" or objective.surrogate.rules() == (objective.penalties[0].where,)


def proxies() -> dict[str, dict[str, Any]]:
    """The settings of `proxy_kl` in the table of Lp-Reg."""
    rows = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name: dict([cell.strip("`").split(": ")]) for name, cell, _ in rows}


SETTINGS = {
    "kl-type-kl": ProxyKL(estimator="k1"),
    "kl-type-abs": ProxyKL(estimator="abs"),
    "kl-type-mse": ProxyKL(estimator="k2"),
    "kl-type-low-var-kl": ProxyKL(estimator="k3"),
    "fixed-threshold": ProxyKL(relative=False),
    "temperature": ProxyKL(temperature=0.6),
    "current-policy": ProxyKL(policy="current"),
}


def test_a_setting_of_the_proxy_means_what_the_release_computes(tmp_path: Path) -> None:
    found = {}
    for name, settings in proxies().items():
        file = tmp_path / f"{name}.yaml"
        file.write_text("\n".join(f"{key}: {value}" for key, value in settings.items()))
        found[name] = ProxyKL(**read_yaml(file))
    assert found == SETTINGS


def test_the_variants_of_a_preset_have_different_weights_on_this_batch() -> None:
    """Otherwise the loops above could not tell them apart."""
    of = {
        name: (name.partition("/")[0], *map(float, map(WEIGHTS[name], TOKENS))) for name in WEIGHTS
    }
    assert len(set(of.values())) == len(of)
