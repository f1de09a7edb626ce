"""What `rlobj bench` measures, on the machine at hand.

Each benchmark is a module with

    measure(*, quick, rounds, progress) -> Table      its numbers
    draw(figure, table)                               a picture of them, on a matplotlib figure

and is known by its name in `BENCHMARKS`. Other libraries are measured beside ours where they are
installed, and skipped by name where they are not.
"""

from rlobj.benchmarking.tables import Column, Table

__all__ = ["BENCHMARKS", "Column", "Table"]

BENCHMARKS = ("heads", "step", "plan", "scaling", "trainer")
