"""What a run works with, decided once: `resolve` is the one step from settings to an open run.

    layers -> RunConfig -> open_run(request, inputs): resolve -> ResolvedRun -> run_step

`new_run.py` and `resumed_run.py` make the request. A dry run, the header, training in this process
and training in new ones read the same ResolvedRun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlobj.base.errors import DataError, warn
from rlobj.data import Problem, load_problems
from rlobj.data.problems import known_problems
from rlobj.data.sources import is_here, source_names
from rlobj.ranks import ProcessGroup, together
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import is_run
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.layers import Layer
from rlobj.settings.run_config import RunConfig
from rlobj.training.loop.inputs import CallerInputs

if TYPE_CHECKING:
    from rlobj.sizing.fitting import Choice
    from rlobj.sizing.sizes import Cards, Size


@dataclass(frozen=True)
class RunRequest:
    """A run as it is asked for: its settings are checked, and some of them may be `auto`.

    Attributes:
        config: its configuration; that of a new run has absolute paths.
        path: its folder.
        layers: the layers of the configuration, lowest first; of a resumed run, its changes.
        processes: how many processes train.
        done: the steps done before.
        resumed: it goes on.
    """

    config: RunConfig
    path: Path
    layers: Sequence[Layer] = ()
    processes: int = 1
    done: int = 0
    resumed: bool = False

    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl of the steps done before."""
        lines = RunFolder(self.path).lines() if self.resumed else []
        return [line for line in lines if line["step"] <= self.done]


class Hardware(NamedTuple):
    """What a run computes on.

    Attributes:
        comm: the processes that are open.
        cards: the GPUs of all processes; None = there are none.
    """

    comm: ProcessGroup
    cards: Cards | None

    @classmethod
    def of_this_machine(cls, processes: int) -> Hardware:
        """That of processes which are not started yet, each with a GPU like that of this one."""
        from rlobj.sizing.sizes import Cards, own_card

        card = own_card()
        cards = None if card is None else Cards(processes, card)
        return cls(ProcessGroup(), cards)


class Problems(NamedTuple):
    """The problems of a run; without held-out ones, it is not evaluated."""

    train: list[Problem]
    test: list[Problem]


@dataclass(frozen=True)
class ResolvedRun(RunRequest):
    """A run whose settings have their values. Nothing is written or loaded yet.

    Attributes:
        inputs: the objects of the caller, which take the place of what settings name.
        choices: what each setting that was `auto` stands for, with the reason.
        cards: the GPUs of all processes; None = there are none.
        size: of its model, where something depends on it; None = nothing does, or not known.
        here: nothing is fetched from the hub, as in a dry run.
        read: the problems that have been read already, by the name of their split.
    """

    inputs: CallerInputs = field(default_factory=CallerInputs)
    choices: Sequence[Choice] = ()
    cards: Cards | None = None
    size: Size | None = None
    here: bool = False
    read: Mapping[str, list[Problem]] = field(default_factory=dict)

    @property
    def chosen(self) -> str:
        """The choices that have a reason, one a line."""
        made = [choice for choice in self.choices if choice.reason]
        return "\n".join(f"{one.setting}={one.written()}: {one.reason}" for one in made)

    @cached_property
    def problems(self) -> Problems:
        """Its problems, read once.

        If a source has no test part, all of it is trained on and the run is not evaluated.

        Raises:
            DataError: a source cannot be read, or a test part that was required is missing.
        """
        config, inputs = self.config, self.inputs
        data, rows, held_out = config.data, inputs.passed("data"), inputs.passed("eval_on")
        rows = None if rows is None else list(rows)
        read, graded = self.read, config.rewards.needs_answers
        train = read.get("train") or load_problems(
            data, "train", rows, answers=config.needs_answers
        )
        if not config.evaluation.every or (self.here and not is_here(data.test)):
            return Problems(train, [])
        if rows is not None and held_out is None:
            held_out = rows if data.test_fraction else None
            if held_out is None and data.test is None:
                return Problems(train, [])
        try:
            test = read.get("test") or load_problems(data, "test", held_out, answers=graded)
        except DataError as error:
            if held_out is not None or data.test is not None or data.test_fraction:
                raise
            warn("no held-out evaluation: %s", error)
            return Problems(train, [])
        test = test[: config.evaluation.problems]
        if warning := known_problems(train, test):
            warn(f"{', '.join(source_names(data.test or data.source))}: {warning}")
        return Problems(train, test)


def resolve(
    request: RunRequest, hardware: Hardware, inputs: CallerInputs, *, here: bool = False
) -> ResolvedRun:
    """Give each setting its value; all processes call this together.

    Args:
        request: the run.
        hardware: what it computes on.
        inputs: the objects of the caller.
        here: fetch nothing from the hub; what depends on it stays `auto`.

    Raises:
        ConfigError: as `choose_settings`; or the run cannot fit the GPUs.
        DataError: the problems cannot be read, and the share that is held out depends on them.
    """
    from rlobj.sizing.choosing import held_out_share, settled

    size, choices = _choices(request, hardware, inputs.passed("model"), here=here)
    config = settled(request.config, choices)
    read: dict[str, list[Problem]] = {}
    if not here or is_here(config.data.source):
        share, read = held_out_share(config, rows=inputs.passed("data") is not None)
        choices += share
        config = settled(config, choices)
    return ResolvedRun(
        **{**vars(request), "config": config},
        inputs=inputs,
        choices=choices,
        cards=hardware.cards,
        size=size,
        here=here,
        read=read,
    )


def _choices(
    request: RunRequest, hardware: Hardware, model: Any, *, here: bool
) -> tuple[Size | None, list[Choice]]:
    """The size of the model, and what is chosen for the hardware by the first process for all."""
    from rlobj.models.checking import UnreadableModel
    from rlobj.sizing.choosing import choose_settings, settled
    from rlobj.sizing.fitting import require_memory
    from rlobj.sizing.sizes import Size

    (comm, cards), config = hardware, request.config
    size: Size | None = None
    unknown = ""
    choices: list[Choice] = []
    with together(comm, "choosing the settings"):
        if comm.rank == 0:
            resumed = request.resumed and is_run(request.path)
            stored = read_settings(request.path) if resumed else None
            if model is not None:
                size = Size.of(model, config.model.lora)
            elif here or cards is not None:
                try:
                    size = Size.named(config.model, local=here)
                except UnreadableModel as error:
                    unknown = "" if cards is None else str(error)
            choices = choose_settings(config, size, cards, stored, unknown)
            if size is not None and cards is not None and not here:
                now = settled(config, choices)
                require_memory(now, size, now.training.strategy, cards)
    return comm.broadcast((size, choices))
