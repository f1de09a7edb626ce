"""The names of scores: policies whose log-probs of the same tokens an objective reads.

A score NAME gives the columns NAME_logprob, NAME_prob, NAME_gap = l_NAME − l, NAME_entropy and
NAME_kl = Σ_k π_k·(log π_k − log π_NAME,k).
"""

from collections.abc import Iterator, Mapping, Sequence

from rlobj.base.errors import nearest
from rlobj.objectives.penalties import KL, Divergence
from rlobj.objectives.rules import NAMES, Expr, nodes, score_columns
from rlobj.objectives.tokens import COLUMN_NAMES

_RESERVED = ("old", "policy", "proxy", "ref", "sampler")
_OF_REWARDS = ("advantage", "reward", "turn_reward", "covariance", "gradient_norm")
"""Columns of rules that are made from rewards."""


def score_name_mistakes(scores: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    """What is wrong with the names of scores, in words.

    Args:
        scores: their names.
        columns: names of an objective's own columns.
    """
    taken = {*NAMES, *COLUMN_NAMES, *columns, *_RESERVED}
    for name in scores:
        used = {name, *score_columns([name])} & taken if name != "reference" else set()
        why = f": '{min(used)}' is taken" if used else ""
        if used or not (name.isidentifier() and name[0].islower()):
            yield f"scores: expected new names such as 'teacher' in lower case, got '{name}'{why}"
    for name in {name for name in scores if scores.count(name) > 1}:
        yield f"scores: '{name}' is given twice"


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
            yield (
                f"{place}: a kl against '{kl.score}' needs its estimator. k2 has the expected "
                "gradient of the reverse KL, k1 has none, and k3 grows exponentially with the gap: "
                f"{{kind: kl, against: {kl.score}, estimator: k2}}"
            )
    against = {place: kl.score for place, kl in kls.items()} | {"reward_kl": reward_kl}
    divergences = {place: term for place, term in terms.items() if isinstance(term, Divergence)}
    against |= {place: term.against for place, term in divergences.items()}
    for place, term in divergences.items():
        same = [other for other in divergences.values() if other.against == term.against]
        if any(other.measure != term.measure for other in same):
            yield (
                f"{place}: there is one divergence from '{term.against}'; give all its penalties "
                "the same settings of the divergence"
            )
    for place, name in against.items():
        readable = ("reference", *scores)
        if name not in (None, *readable):
            others = ("old", "sampler") if place in kls else ()
            yield (
                f"{place}: there is no score '{name}'.{nearest(name, (*readable, *others))} "
                f"Or declare it: scores: {{{name}: ...}}"
            )


def of_rewards(node: Expr) -> bool:
    """Whether a node is a reward, or a column that is made from rewards."""
    return isinstance(node, nodes.NamedReward) or str(node) in _OF_REWARDS
