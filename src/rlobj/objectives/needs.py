"""The TokenBatch columns that the stages of an objective read, and the scores among them.

A score NAME gives the columns NAME_logprob, NAME_prob, NAME_gap = l_NAME − l, NAME_entropy and
NAME_kl = Σ_k π_k·(log π_k − log π_NAME,k).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlobj.base.errors import nearest
from rlobj.objectives.penalties import KL, Divergence
from rlobj.objectives.rules import NAMES, Expr, nodes, score_columns
from rlobj.objectives.tokens import COLUMN_NAMES, TokenBatch

_RESERVED = ("old", "policy", "proxy", "ref", "sampler")
_OF_REWARDS = ("advantage", "reward", "turn_reward", "covariance", "gradient_norm")
"""Columns of rules that are made from rewards."""


@dataclass(frozen=True)
class Needs:
    """The TokenBatch columns that each stage of an objective reads.

    `rewards` are those that rules read by name, each with the field that reads it.
    """

    observe: frozenset[str]
    plan: frozenset[str]
    loss: frozenset[str]
    rewards: Mapping[str, str]

    @property
    def ever(self) -> frozenset[str]:
        """The columns that any stage reads."""
        return self.observe | self.plan | self.loss


def read_columns(names: Iterable[str], scores: Iterable[str]) -> list[str]:
    """The TokenBatch columns behind some columns, of which scores give some."""
    derived = score_columns(scores)
    return [c for name in names for c in (derived[name].reads if name in derived else (name,))]


def rule_columns(
    expressions: Iterable[tuple[str, Expr]], scores: Iterable[str] = ()
) -> dict[str, str]:
    """The columns that expressions read, each with what reads it.

    Args:
        expressions: the objective's rules and numbers, each with the field that holds it.
        scores: names of the scores.
    """
    readers = {"advantages": "the surrogate"}
    for field, expression in expressions:
        for column in read_columns(expression.batch_columns(), scores):
            readers.setdefault(column, f"{field} '{expression}'")
    return readers


def present(columns: Mapping[str, str], tables: Sequence[TokenBatch]) -> dict[str, str]:
    """The columns of the loss that all tables hold; `plan` checks that they are finite."""
    return {
        name: who
        for name, who in columns.items()
        if tables
        and name != "entropy"
        and all(name in t.columns or getattr(t, name, None) is not None for t in tables)
    }


def score_name_mistakes(scores: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    """What is wrong with the names of scores, in words.

    Args:
        scores: their names.
        columns: names of an objective's own columns.
    """
    taken = {*NAMES, *COLUMN_NAMES, *columns, *_RESERVED}
    for name in scores:
        used = name != "reference" and {name, *score_columns([name])} & taken
        if used or scores.count(name) > 1 or not (name.isidentifier() and name[0].islower()):
            yield f"scores: expected new names such as 'teacher' in lower case, got '{name}'"


def against_mistakes(
    scores: Sequence[str], terms: Mapping[str, object], reward_kl: str
) -> Iterator[str]:
    """What is wrong with the scores that KL terms and divergences read, in words.

    Args:
        scores: names of the objective's scores.
        terms: the surrogate and the penalties, by their place in the configuration.
        reward_kl: the score that the KL in the reward reads.
    """
    kls = {place: term for place, term in terms.items() if isinstance(term, KL)}
    for place, kl in kls.items():
        if kl.score not in (None, "reference") and "estimator" not in kl.model_fields_set:
            yield f"{place}: a kl against '{kl.score}' needs its estimator, such as estimator: k2"
    against = {place: kl.score for place, kl in kls.items()} | {"reward_kl": reward_kl}
    divergences = {place: term for place, term in terms.items() if isinstance(term, Divergence)}
    against |= {place: term.against for place, term in divergences.items()}
    for place, term in divergences.items():
        same = [other for other in divergences.values() if other.against == term.against]
        if any(other.measure != term.measure for other in same):
            yield f"{place}: give all divergences from '{term.against}' the same settings"
    for place, name in against.items():
        readable = ("reference", *scores)
        if name not in (None, *readable):
            others = ("old", "sampler") if place in kls else ()
            yield f"{place}: there is no score '{name}'.{nearest(name, (*readable, *others))}"


def of_rewards(node: Expr) -> bool:
    """Whether a node is a reward, or a column that is made from rewards."""
    return isinstance(node, nodes.NamedReward) or str(node) in _OF_REWARDS
