"""The metrics of a step's rollout over all ranks."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import torch

from rlobj.conversations.environment import ENDS
from rlobj.conversations.grading import calls_of
from rlobj.conversations.grading import sums as conversation_sums
from rlobj.objectives.statistics import Comm, extreme_by
from rlobj.rewards.kinds import NO_ANSWER, NOT_COMPARED
from rlobj.samplers import Response
from rlobj.samplers.response import rollouts_of, whole
from rlobj.training.rollouts.collector import Rollout, has_signal


def rollout_metrics(
    rollout: Rollout,
    comm: Comm,
    names: Sequence[str] = (),
    decoupled: bool = False,
    epochs: Mapping[str, float] | None = None,
    step: int = 0,
) -> dict[str, float]:
    """Reward, accuracy and length of all sampled responses, and how many of them are trained on.

    A rollout of several rows is one response.

    There is no accuracy where no grade says which responses are right.
    Responses that dynamic sampling left out count too: it keeps groups with an accuracy between 0
    and 1, so that the kept groups alone would hide progress.

    Args:
        rollout: this rank's.
        comm: the process group.
        names: of several rewards.
        decoupled: each of them has an advantage of its own.
        epochs: of each of several sources.
        step: steps that were trained before, the version of the weights that train.
    """
    epochs = epochs or {}
    local = [_sums(kind, names, decoupled, epochs) for kind in (rollout.responses, rollout.dead)]
    sums = comm.sum(torch.tensor([[*counts.values()] for counts in local], dtype=torch.float64))
    kept, dead = (dict(zip(local[0], values, strict=True)) for values in sums.tolist())
    both = {name: kept[name] + dead[name] for name in kept}

    def mean(name: str, over: str = "responses") -> float:
        return both[name] / both[over] if both[over] else math.nan

    judged = both["judged"] and both["judged"] + both["cut"]  # an environment says what is right
    reward, several = mean("reward", "decided"), both["rows"] > both["responses"]
    return {
        "reward/mean": reward,
        "reward/std": math.sqrt(max(mean("reward_square", "decided") - reward * reward, 0.0)),
        **({"reward/accuracy": both["right"] / judged} if judged else {}),
        "reward/undecided": both["undecided"],
        "reward/undecided_share": mean("undecided"),
        "reward/no_answer_share": mean("no_answer"),
        **{f"reward/{cause}_share": mean(cause) for cause in NOT_COMPARED},
        "reward/groups": kept["groups"],
        **{f"reward/{name}/mean": mean(f"reward/{name}", "decided") for name in names},
        "groups/without_signal": both["silent_groups"],
        "groups/without_signal_share": mean("silent_groups", "groups"),
        "response/count": both["responses"],
        "response/length_mean": mean("tokens"),
        "response/truncated": mean("truncated"),
        "response/truncated_right": mean("truncated_right", "truncated_judged"),
        "sampling/batches": float(rollout.batches),
        "sampling/dead_groups": both["groups"] - kept["groups"] - rollout.surplus,
        "sampling/surplus_groups": float(rollout.surplus),
        **rollout.metrics,
        **({"rollout/rows": mean("rows"), "rollout/tokens": mean("tokens")} if several else {}),
        **_staleness(rollout.responses, comm, step),
        "tokens/sampled": both["tokens"],
        "tokens/step": kept["tokens"],
        **{f"data/{name}/epoch": epoch for name, epoch in epochs.items()},
        **{
            f"data/{name}/share": kept[f"data/{name}"] / max(kept["responses"], 1)
            for name in epochs
        },
        **(_conversations(both) if both["turns"] else {}),
    }


def _staleness(rows: Sequence[Response], comm: Comm, step: int) -> dict[str, float]:
    """Steps between the weights that drew a token and those that train, over the tokens, and runs
    of tokens of one version, over the responses; {} if every token is fresh."""
    runs = [(step - version, size) for row in rows for version, size in row.versions if size]
    stale, sizes = torch.tensor(runs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    drawn = sum(row.length > 0 for row in rows)
    sums = torch.tensor([int((stale * sizes).sum()), int(sizes.sum()), len(runs), drawn])
    steps, tokens, count, responses = comm.sum(sums).tolist()
    if not steps and count == responses:
        return {}
    return {
        "rollout/staleness/mean": steps / tokens,
        "rollout/staleness/max": float(extreme_by(stale, torch.zeros_like(stale), 1, True, comm)),
        "rollout/versions": count / responses,
    }


def _conversations(sums: Mapping[str, float]) -> dict[str, float]:
    """Turns per response; calls of tools, also by how they failed, and their seconds; the share of
    responses that called a tool, the accuracy of these and of the others; and the shares of
    responses that ended at a limit."""
    calls = ("calls", "errors", "timeouts", "malformed", "exceptions", "seconds")
    count, judged = sums["responses"], sums["judged"] and sums["judged"] + sums["cut"]
    judged_with = sums["judged"] and sums["judged_with"] + sums["cut_with"]
    accuracies = {
        "with": (sums["right_with"], judged_with),
        "without": (sums["right"] - sums["right_with"], judged - judged_with),
    }
    return {
        "turns/mean": sums["turns"] / count,
        **{f"tools/{name}": sums[name] for name in calls},
        "tools/used_share": sums["with_calls"] / count,
        **{f"tools/accuracy_{name}": right / of for name, (right, of) in accuracies.items() if of},
        **{f"turns/at_{name}": sums[f"at_{name}"] / count for name in ENDS},
    }


def _sums(
    rows: Sequence[Response], names: Sequence[str], decoupled: bool, sources: Iterable[str]
) -> dict[str, float]:
    """Sums over some rollouts of this rank, by what they count."""
    responses = [*map(whole, rollouts_of(rows))]
    groups = [list(group) for _, group in groupby(responses, lambda r: r.group)]
    decided = [r for r in responses if not math.isnan(r.reward)]
    verdicts = [r.grade.correct for r in responses if r.grade.correct is not None]
    causes = Counter(r.grade.cause for r in responses)
    truncated = [r for r in responses if r.finish == "length"]
    called = [r for r in responses if any(map(calls_of, r.turns))]
    with_calls = [r.grade.correct for r in called]
    return {
        "responses": len(responses),
        "rows": len(rows),
        "groups": len(groups),
        "silent_groups": sum(len(g) > 1 and not has_signal(g, decoupled) for g in groups),
        "decided": len(decided),
        "undecided": len(responses) - len(decided),
        "reward": sum(r.reward for r in decided),
        "reward_square": sum(r.reward * r.reward for r in decided),
        "judged": len(verdicts),
        "cut": sum(r.cut_without_verdict for r in responses),
        "cut_with": sum(r.cut_without_verdict for r in called),
        "right": sum(verdicts),
        "judged_with": sum(verdict is not None for verdict in with_calls),
        "right_with": sum(verdict is True for verdict in with_calls),
        "tokens": sum(r.length for r in responses),
        "truncated": len(truncated),
        "truncated_judged": sum(r.grade.correct is not None for r in truncated),
        "truncated_right": sum(r.grade.correct is True for r in truncated),
        "no_answer": sum(causes[cause] for cause in NO_ANSWER),
        **{cause: causes[cause] for cause in NOT_COMPARED},
        **{
            f"reward/{name}": sum(r.grade.rewards[k] for r in decided)
            for k, name in enumerate(names)
        },
        **{f"data/{name}": sum(r.problem.source == name for r in responses) for name in sources},
        **conversation_sums(responses),
    }
