"""Insight: what people read from the records of a run.

inspect        the tokens that an objective dropped, reweighted or penalised
write_inspection_page  a page with all tokens of a run
diagnose       what is wrong with a run
replay         other objectives and rules on the recorded tokens
Outcome        what came out of a run, in numbers
report         runs compared on one page
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
