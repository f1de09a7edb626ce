"""The verifier as a reward function of TRL and of verl; it needs neither of them, nor torch.

    from rlobj.integrations.rewards import accuracy_reward           # TRL
    trainer = GRPOTrainer(..., reward_funcs=accuracy_reward)

    python -m verl.trainer.main_ppo ... \\
        reward.custom_reward_function.path=pkg://rlobj.integrations.rewards

Both share the worker processes of `rlobj.answers.verify`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rlobj.answers.verifier import Verdict, shared_verifier
from rlobj.base.errors import ConfigError
from rlobj.rewards.kinds import best_of_golds

Gold = str | float | None | Sequence[str | float]
"""One gold answer, or a list of several of which any is right; without one: undecided."""


def accuracy_reward(
    completions: Sequence[Any],
    solution: Sequence[Gold] | None = None,
    answer: Sequence[Gold] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Return 1 for each right completion, 0 for a wrong one, and None for an undecided one.

    TRL computes no reward for None. It logs the share of undecided completions as
    `reward/undecided`.

    Args:
        completions: texts, or lists of messages, of which the last one counts.
        solution: the gold answers, TRL's usual column.
        answer: the gold answers, if there is no column `solution`.
        log_metric: as TRL passes it.

    Raises:
        ConfigError: neither column is there.

    Example:
        >>> accuracy_reward([r"It is \\boxed{0.5}.", "I give up."], answer=["1/2", "3"])
        [1.0, 0.0]
    """
    golds = answer if solution is None else solution
    if golds is None:
        raise ConfigError("accuracy_reward expects a column solution or answer with gold answers")
    texts = [c if isinstance(c, str) else c[-1]["content"] or "" for c in completions]
    verdicts = _verdicts(list(zip(texts, golds, strict=True)))
    rewards = [None if verdict.correct is None else float(verdict.correct) for verdict in verdicts]
    if log_metric is not None and rewards:
        log_metric("reward/undecided", rewards.count(None) / len(rewards))
    return rewards


def compute_score(
    data_source: str, solution_str: str, ground_truth: Gold, extra_info: Any = None, **_: Any
) -> dict[str, Any]:
    """Return verl's score of a response: 1 if it is right, else 0.

    verl needs a number for each response, so an undecided one gets 0.

    Args:
        data_source: not used.
        solution_str: the response.
        ground_truth: the gold answer.
        extra_info: not used.

    Returns:
        `score` and `acc`; `undecided`, 1 or 0; `pred`, the final answer, with which verl computes
        maj@k. verl writes all of them to its validation metrics and rollout files.

    Example:
        >>> compute_score("math", r"It is \\boxed{0.5}.", r"\\frac12")
        {'score': 1.0, 'acc': 1.0, 'undecided': 0.0, 'pred': '0.5'}
    """
    [verdict] = _verdicts([(solution_str, ground_truth)])
    score, undecided = float(verdict.correct is True), float(verdict.correct is None)
    return {"score": score, "acc": score, "undecided": undecided, "pred": verdict.answer or ""}


def _verdicts(pairs: Sequence[tuple[str, Gold]]) -> list[Verdict]:
    """The verdict on each response, by the gold answer that is best for it."""
    answers = [(text, gold if isinstance(gold, list | tuple) else [gold]) for text, gold in pairs]
    return best_of_golds(shared_verifier().verify_many, answers)
