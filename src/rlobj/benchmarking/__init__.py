"""What `rlobj bench` measures, on the machine at hand.

Each benchmark is a module with

    measure(*, quick, rounds, progress) -> Table      its numbers
    draw(figure, table)                               a picture of them, on a matplotlib figure

and is known by its name in `BENCHMARKS`. Other libraries are measured beside ours where they are
installed, and skipped by name where they are not.
"""

from rlobj.benchmarking.tables import Column, Table

__all__ = ["BENCHMARKS", "Column", "Table"]

BENCHMARKS = {
    "heads": "log-probs and entropies from hidden states, beside other libraries' heads",
    "step": "a training step, phase by phase, and what it leaves out",
    "plan": "what selecting over the whole update costs, to 32M tokens",
    "scaling": "time and memory against tokens, vocabulary, group size and processes",
    "trainer": "whole training steps beside TRL's GRPOTrainer, same policy, same batch",
}
"""Name, `rlobj.benchmarking.<name>`, and what it measures."""
