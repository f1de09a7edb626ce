"""The global random generators."""

import random
import sys


def seed_generators(number: int) -> None:
    """Seed the global generators of the packages that are imported."""
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number % 2**32)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(number)  # `torch.manual_seed` takes 0.3 ms
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(number)
