"""Load problems, draw them in a shuffled order, and turn them into prompts.

    load_problems                 training or test problems of a source: a named data set, file,
                                  folder, hub id or built-in task
    load_benchmark                a published benchmark
    ProblemStream                 the problems of a source, or of several by weight, in a
                                  shuffled endless order that can be resumed
    format_prompt, encode_prompt  problem -> text -> token ids

`rlobj.data.tasks` has the built-in tasks, `rlobj.data.sources` the named training sets, and
`rlobj.data.benchmarks` the benchmarks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
