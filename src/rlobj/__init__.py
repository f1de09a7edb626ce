"""rlobj: composable policy-optimization objectives for RL of language models.

A batch is a table with one row per trained token. An objective is data: expressions over that
table's columns, a surrogate and a divisor.

    >>> from rlobj import Clip, Objective, advantage, entropy, prob
    >>> dapo = Objective(surrogate=Clip(low=0.2, high=0.28))
    >>> stapo = dapo.drop((advantage > 0) & (prob < 0.002) & entropy.bottom(0.8))

Every public name is importable from here. A name is loaded when it is first used, so that
`import rlobj` itself loads only the package lazy-loader.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
