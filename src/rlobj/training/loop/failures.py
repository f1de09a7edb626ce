"""What happens when a step fails: what is saved, what is deleted, and what the error says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from rlobj.base.errors import BatchError, RlobjError, RunError
from rlobj.base.files import nearby
from rlobj.config.resuming import trust_option
from rlobj.config.run_config import settings_of
from rlobj.ranks import RankFailed
from rlobj.training.loop.trainer import Trainer
from rlobj.training.rollouts.sample_checks import SamplerGap


@contextlib.contextmanager
def guarded(trainer: Trainer) -> Iterator[None]:
    """Leaves the run in order when a step fails.

    - If samples do not come from the policy, their rollout is deleted: no run may train on it.
    - If the sampler is lost, the steps done so far are saved.
    """
    with explained(trainer):
        try:
            yield
        except RankFailed:
            raise
        except RunError as error:
            stage = trainer.learner.clock.stage
            if stage in ("scoring", "updating") and isinstance(error, SamplerGap):
                if trainer.comm.rank == 0:
                    trainer.journal.drop(trainer.learner.steps)
            elif stage in ("syncing", "evaluating"):
                trainer.write()
                trainer.save(now=True)
            elif stage == "sampling":
                trainer.save(now=True)
            raise


@contextlib.contextmanager
def explained(trainer: Trainer) -> Iterator[None]:
    """Inside, errors become RunErrors: the input was right, since steps are being made."""
    step = trainer.learner.steps  # from 0
    try:
        yield
    except RunError:
        raise
    except BatchError as error:
        trust = trust_option(settings_of(trainer.config))
        raise RunError(
            f"step {step + 1} failed: {error}\nThe same step would fail again. Mend what the error "
            "names: a rule in a preset file, which rlobj presets check FILE.yaml tries, or the "
            f"reward. Then start anew:\n"
            f"  rlobj train --from {nearby(trainer.run.path)}{trust} --preset FILE.yaml"
        ) from error
    except RlobjError as error:
        raise RunError(f"step {step + 1} failed: {error}") from error
    except OSError as error:
        raise RunError(f"step {step + 1} could not be written: {error}") from error
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"step {step + 1} ran out of GPU memory: {error}\nLower training.micro_batch_tokens or "
            "sampling.batch_tokens, or set training.gradient_checkpointing=true; none of them "
            "changes results."
        ) from error
