"""Problems: where they come from, the order they are drawn in, and how they become prompts.

    name -> where it lies -> rows -> problems
    load_problems: a source (named data set, file, folder, hub id, built-in task) for training
    load_benchmark: a published benchmark for testing
    ProblemStream: the same problems in a shuffled endless order that can be resumed exactly
    format_prompt, encode_prompt: problem -> text -> token ids

`rlobj.data.tasks` holds the built-in synthetic tasks, `rlobj.data.catalogue` the named training
sets and `rlobj.data.benchmarks` the benchmarks.
"""

from rlobj.data.benchmarks import load_benchmark
from rlobj.data.layouts import Columns
from rlobj.data.problems import Problem, ProblemStream
from rlobj.data.prompts import MATH_TEMPLATE, encode_prompt, format_prompt
from rlobj.data.sources import DataConfig, load_problems

__all__ = [
    "MATH_TEMPLATE",
    "Columns",
    "DataConfig",
    "Problem",
    "ProblemStream",
    "encode_prompt",
    "format_prompt",
    "load_benchmark",
    "load_problems",
]
