"""Insight: what people read from the records of a run.

inspect        the tokens that an objective dropped, reweighted or penalised
write_inspection_page  a page with all tokens of a run
diagnose       what is wrong with a run
replay         other objectives and rules on the recorded tokens
Outcome        what came out of a run, in numbers
report         runs compared on one page
"""

from rlobj.base.lazy import names_of

__getattr__, __all__ = names_of(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
