"""Degenerate tables, on which an objective that divides by a spread or a mean has no value."""

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rlobj.base.errors import BatchError, ConfigError
from rlobj.base.showing import place_of
from rlobj.objectives.loss import terms_of
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.settings import bind
from rlobj.objectives.tokens import LOGPROBS, PER_TOKEN, TokenBatch

TABLES: dict[str, dict[str, Any]] = {
    "rewards and lengths that differ": {},
    "equal rewards": {"rewards": (1,) * 8},
    "rewards of 0": {"rewards": (0,) * 8},
    "equal lengths": {"lengths": (3,) * 8},
    "one token in each response": {"lengths": (1,) * 8},
    "an empty response": {"lengths": (0, 1, 2, 5, 2, 4, 3, 1)},
    "a group of one response": {"groups": (0, 0, 0, 0, 1, 1, 1, 2)},
    "one response": {"groups": (0,), "lengths": (3,), "rewards": (1,)},
    "tokens with probability 1": {"certain": 2},
}
"""Each with what differs from the first one."""


def problems(objective: Objective) -> Iterator[str]:
    """The name and the error, with its row, of each of `TABLES` on which an objective fails.

    Advantages, plan, loss and gradient are computed. With classes of one's own, all values have to
    be those of each response in a table of its own, and on the first table, finite differences of
    the loss have to be its gradient; their first error is the only one. An objective with a class
    that is not imported is not tried.
    """
    if not objective.own_files and "custom" in str(objective.model_dump(mode="json")):
        return
    for name, differences in TABLES.items():
        try:
            table = _table(objective, **differences)
            _try(objective, table)
            if objective.own_files:
                _try_own_code(objective, table, name == next(iter(TABLES)))
        except BatchError as error:
            yield f"{name}: {error}"
            if objective.own_files:
                return


def require_trainable(objective: Objective, where: str) -> None:
    """Try an objective before it is trained with.

    Args:
        objective: what is tried.
        where: the place of the objective, for the message.

    Raises:
        ConfigError: the errors of `problems`.
    """
    if failures := list(problems(objective)):
        raise ConfigError(
            "\n  ".join([f"{where}: training fails at a table with", *failures])
            + "\nGuard what divides or takes a logarithm: when(x > 0, 1 / x, 0), maximum(x, 1e-6)"
            * (not objective.own_files)
        )


_STEP = 2e-3
"""Nats of a finite difference."""
_STOPS: Any = (
    *(torch.Tensor.detach, torch.Tensor.item, torch.Tensor.__float__, torch.Tensor.tolist),
    vars(torch._C.TensorBase)["data"].__get__,
)


class _StopGradients(TorchFunctionMode):
    """Keeps what has no gradient, x.detach() or x in no_grad(), and gives it again in later calls.

    So a difference of the loss sees as constant what autograd does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []
        self._off, self.again = False, iter(())

    def __enter__(self) -> Self:
        self.again = iter([*self._kept])
        return super().__enter__()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        value = function(*args, **(kwargs or {}))
        if function is torch._C._set_grad_enabled:
            self._off = not args[0]
        elif self._off or (function in _STOPS and args[0].requires_grad):
            value = next(self.again, value)
            self._kept.append(value)
        return value


def _try_own_code(objective: Objective, table: TokenBatch, differences: bool) -> None:
    """Raise BatchError if values depend on the split, or the loss has another gradient."""
    table, state = table.replace(index=None), {**objective.observe([table]), "update": 0}
    empty = (table.lengths == 0).nonzero().flatten().tolist()  # a micro-batch has tokens
    first, *others = (table.lengths != 0).nonzero().flatten().tolist()
    parts = [table.select([*empty, first]), *(table.select([row]) for row in others)]
    for phase in objective.phases:
        plan, plans = phase.plan([table], state), phase.plan(parts[::-1], state)
        whole = _values(phase, table, plan, 0)
        alone = [_values(phase, part, plans, -1 - i) for i, part in enumerate(parts)]
        for name, value in whole.items():
            apart = torch.cat([values[name] for values in alone])
            near = value.isclose(apart, 1e-4, 1e-5 * float(value.abs().max()), equal_nan=True)
            for row in (~near).nonzero()[:1, 0].tolist():
                raise BatchError(
                    f"{name} is {value[row]:.6g} at row {row}, and {apart[row]:.6g} if each "
                    f"response is in a micro-batch of its own{_place(objective, name)}"
                )
        columns = ["logprobs", *[f"{phase.critic}_new_value"] * bool(phase.values)]
        for column in columns if differences else ():
            _try_differences(phase, table, plan, column, " ".join(whole))


def _try_differences(
    phase: Objective, table: TokenBatch, plan: Plan, column: str, names: str
) -> None:
    leaf = table.column(column, "the loss").clone().requires_grad_()
    mode = _StopGradients()

    def loss(values: Tensor) -> Tensor:
        with mode:
            return phase.loss(table.with_columns({column: values}), plan).loss

    [gradient] = torch.autograd.grad(loss(leaf), leaf)
    rounding = 0.02 * float(gradient.abs().max())  # float32, as in training
    for row, step in enumerate(_STEP * torch.eye(len(leaf))):
        slope = ((loss(leaf + step) - loss(leaf - step)) / (2 * _STEP)).detach()
        if not slope.isclose(gradient[row], rtol=0.02, atol=rounding):
            raise BatchError(
                f"the gradient is {gradient[row]:.6g} at row {row}, and {slope:.6g} by finite "
                f"differences of the loss{_place(phase, names)}"
            )


def _place(objective: Objective, name: str) -> str:
    """File and line of the class of one's own that is in a name, or else of the first one."""
    terms = (*objective.surrogate.parts(), *objective.penalties, *objective.values)
    named, methods = {type(term) for term in terms if str(term) in name}, objective.own_methods
    owner = next((of for of in methods if of in named), next(iter(methods)))
    return place_of(methods[owner][0])


def _values(phase: Objective, table: TokenBatch, plan: Plan, index: int) -> dict[str, Tensor]:
    """What a phase has for each token of a table of its plan, by what it is."""
    place = index % len(plan.weights)
    phase.loss(table, plan, place)  # which reports an error of a term
    terms = terms_of(table, plan.of(table, place))
    parts = {str(term): bind(term, terms.values)(terms) for term in phase.terms.values()}
    of_terms = (*plan.penalties[place], *plan.value_shares[place])
    shares = {f"c/Z of {k}": share for k, share in enumerate(of_terms, 1)}
    return {"m·ω/Z": plan.weights[place], "A": plan.advantages[place], **shares, **parts}


def _try(objective: Objective, table: TokenBatch) -> None:
    state = {**objective.observe([table]), "update": 0}
    for phase in objective.phases:
        plan = phase.plan([table], state)
        leaf = table.logprobs.clone().requires_grad_()
        loss = phase.loss(table.replace(logprobs=leaf), plan).loss
        if not loss.requires_grad:
            raise BatchError("the loss has no gradient by the log-probs")
        loss.backward()
        for row in [] if leaf.grad is None else (~leaf.grad.isfinite()).nonzero()[:1, 0].tolist():
            raise BatchError(f"the gradient is not finite at row {row} ({table.row(row)})")


def _table(
    objective: Objective,
    groups: tuple[int, ...] = (0, 0, 0, 0, 1, 1, 1, 1),
    lengths: tuple[int, ...] = (3, 1, 2, 5, 2, 4, 3, 1),
    rewards: tuple[int, ...] = (1, 0, 0, 1, 1, 0, 0, 1),
    certain: int = 0,
) -> TokenBatch:
    """A table with all columns; every `certain`-th token has probability 1, 0 = none."""
    size, names = sum(lengths), tuple(objective.needs.rewards)
    base = torch.arange(size) % 5 / 4 + 0.25  # nats
    if certain:
        base[::certain] = 0
    columns: dict[str, Any] = dict.fromkeys(PER_TOKEN, base)
    columns |= {name: -columns[name] - 0.0 for name in LOGPROBS}
    columns["turn"] = torch.cat([torch.arange(n) // 2 for n in lengths])
    columns["turn_reward"] = columns["turn"] % 2
    columns["versions"] = None  # fresh
    columns["collision"] = (-columns["entropy"]).exp()
    if not certain:
        for place, name in enumerate(LOGPROBS[1:], 3):  # ratios on both sides of 1, at no bound
            columns[name] = columns[name] - (torch.arange(size) % place - place / 2 + 0.3) / 10
            columns[name] = columns[name].clamp(max=-0.01)
    values_by_level = {  # whole numbers, which name populations
        "response": 1 + torch.arange(len(lengths))[:, None] % 2,
        "turn": 1 + columns["turn"] % 2,
        "token": 1 + torch.arange(size) % 3,
    }
    scores = {f"{name}_logprob": columns["old_logprobs"] for name in objective.scores}
    scores |= {f"{name}_entropy": base for name in objective.scores}
    scores |= dict.fromkeys(objective.divergences, base)
    if objective.critic is not None:
        moved = base / 2 + (torch.arange(size) % 4 - 1.5) / 3.3
        kinds = {"value": base / 2, "new_value": moved, "bootstrap": base[: len(lengths), None]}
        scores |= {f"{objective.critic}_{kind}": column for kind, column in kinds.items()}
    reward_values = torch.tensor(rewards).float()
    return TokenBatch(
        lengths=torch.tensor(lengths),
        groups=torch.tensor(groups),
        ids=torch.arange(len(lengths)),
        rewards=reward_values[:, None].expand(-1, len(names)) if names else reward_values,
        reward_names=names or None,
        columns={name: values_by_level[level] for name, level in objective.columns.items()}
        | scores,
        **columns,
    )
