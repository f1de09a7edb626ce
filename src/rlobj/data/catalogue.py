"""Published training sets by name: where they lie, and what they need to be trained on.

| name | problems | reward |
|---|---|---|
| dapo-math-17k | 17,000 competition problems with integer answers | math |
| deepscaler | 40,000 competition problems | math |
| gsm8k | 7,473 word problems; 1,319 for testing | math |
| knights-and-knaves | who tells the truth, among 3 to 7 people | knights_and_knaves |
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlobj.base.errors import DataError
from rlobj.data.files import Row, named_source, read_file, split_files
from rlobj.data.hub import HubSource, first_available
from rlobj.data.layouts import Columns
from rlobj.data.prompts import LOGIC_TEMPLATE, MATH_TEMPLATE, PLAIN_TEMPLATE
from rlobj.data.repeats import Repeats

__all__ = ["NAMED_SOURCES", "NamedSource", "data_folder"]


@dataclass(frozen=True)
class NamedSource:
    """A published data set.

    Attributes:
        name: what `data.source` calls it.
        description: one line for people.
        hub: part (train, test) -> where to look for it on the hub, in this order.
        template: the default of `data.template`; `{prompt}` where the questions already carry
            their instructions.
        reward: the kind of reward that grades it.
        columns: names that are not the usual ones, where they are there.
    """

    name: str
    description: str
    hub: Mapping[str, tuple[HubSource, ...]]
    template: str = MATH_TEMPLATE
    reward: str = "math"
    columns: Columns = field(default_factory=Columns)

    def rows(self, part: str, repeats: Repeats, *, fallback: bool) -> Iterator[Row]:
        """Rows of a part: of a local copy in the folder RLOBJ_DATA_DIR, else from the hub.

        Args:
            part: train or test.
            repeats: drops rows that repeat an earlier one.
            fallback: a local copy that is one file gives all of it.

        Raises:
            MissingExtra: no local copy, and `datasets` is not installed.
            DataError: no such part, or it cannot be had.
        """
        folder = data_folder()
        local = None if folder is None else named_source(folder, self.name)
        if local is not None and local.is_dir():
            for file in split_files(local, part, fallback=fallback):
                yield from read_file(file, repeats)
        elif local is not None and fallback:
            yield from read_file(local, repeats)
        elif part in self.hub:
            instead = (
                f"Without the hub, put {self.name}.parquet or {self.name}.jsonl, or a folder "
                f"{self.name}/ with files named train and test, into a folder and give that: "
                "--data-dir DIR, or RLOBJ_DATA_DIR=DIR in the environment. Or give the file itself "
                "as data.source."
            )
            _, rows = first_available(self.hub[part], self.name, instead, repeats)
            yield from rows
        else:
            raise DataError(
                f"{self.name} has no split '{part}', only {' and '.join(self.hub)}. Set data.test, "
                "or hold out a share of it: data.test_fraction=0.1"
            )


def data_folder() -> Path | None:
    """The folder that the environment variable RLOBJ_DATA_DIR names; None where it names none.

    Raises:
        DataError: there is no such folder.
    """
    name = os.environ.get("RLOBJ_DATA_DIR")
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise DataError(f"RLOBJ_DATA_DIR={name}: there is no such folder.")
    return folder


def _people(config: str) -> HubSource:
    """Three to seven people, as in Logic-RL (arXiv:2502.14768) and AR-Lopti (arXiv:2505.12929)."""
    splits = "+".join(f"{people}ppl" for people in range(3, 8))
    return HubSource("K-and-K/knights-and-knaves", split=splits, configs=(config,))


NAMED_SOURCES: dict[str, NamedSource] = {
    source.name: source
    for source in (
        NamedSource(
            "dapo-math-17k",
            "competition problems with integer answers (DAPO, arXiv:2503.14476)",
            hub={
                "train": (
                    HubSource("BytedTsinghua-SIA/DAPO-Math-17k"),
                    HubSource("open-r1/DAPO-Math-17k-Processed", configs=("all",)),
                )
            },
            template=PLAIN_TEMPLATE,
            columns=Columns(prompt="source_prompt"),  # open-r1's `prompt` lacks the instructions
        ),
        NamedSource(
            "deepscaler",
            "competition problems, AIME to 2023, AMC, Omni-MATH and STILL (DeepScaleR)",
            hub={"train": (HubSource("agentica-org/DeepScaleR-Preview-Dataset"),)},
        ),
        NamedSource(
            "gsm8k",
            "word problems of grade school (arXiv:2110.14168)",
            hub={
                part: (HubSource("openai/gsm8k", split=part, configs=("main",)),)
                for part in ("train", "test")
            },
        ),
        NamedSource(
            "knights-and-knaves",
            "who tells the truth, among 3 to 7 people (arXiv:2410.23123)",
            hub={part: (_people(part),) for part in ("train", "test")},
            template=LOGIC_TEMPLATE,
            reward="knights_and_knaves",
        ),
    )
}
"""The named training sets."""
