"""A training step, from top to bottom.

    run_step             collect a rollout -> train on it -> sync the sampler -> evaluate -> save
    Learner.train_on     shard -> score -> advantages and controllers -> one update per phase and
                         mini-batch in each pass
    Learner._update      plan -> loss and backward per micro-batch -> optimizer step

What is called here is in `trainer.py` and `learner.py`, which also keep the time. `guarded` says
what is saved when a step fails, and `explained` what the error says.
"""

import contextlib
from collections.abc import Iterator

import torch

from rlobj.base.errors import BatchError, RlobjError, RunError, Setting
from rlobj.base.paths import nearby
from rlobj.ranks import RankFailed
from rlobj.settings.run_config import settings_of
from rlobj.settings.trust import trust_option
from rlobj.training.loop.trainer import Trainer


def run_step(trainer: Trainer) -> None:
    """One rollout with all its updates, then everything that is due."""
    with guarded(trainer):
        learner = trainer.learner
        rollout = trainer.collect()
        if trainer.metrics["reward/groups"] > 0:
            trainer.metrics |= learner.train_on(rollout, trainer.after_update)
        else:  # no group has responses that differ in reward
            trainer.metrics |= {**learner.compare_samples(rollout), "train/skipped_updates": 1.0}
        learner.steps += 1
        learner.scores.follow(learner.steps)
        trainer.record_rollout(rollout)
        trainer.sync()
        trainer.evaluate()
        trainer.write()
        trainer.save()


@contextlib.contextmanager
def guarded(trainer: Trainer) -> Iterator[None]:
    """Leaves the run in order when a step fails.

    If the sampler is lost, the steps done so far are saved.
    """
    with explained(trainer):
        try:
            yield
        except RankFailed:
            raise
        except RunError:
            stage = trainer.learner.clock.stage
            if stage in ("syncing", "evaluating"):
                trainer.write()
                trainer.save(now=True)
            elif stage == "sampling":
                trainer.save(now=True)
            raise


@contextlib.contextmanager
def explained(trainer: Trainer) -> Iterator[None]:
    """Inside, errors become RunErrors: the input was right, since steps are being made."""
    step, clock = f"step {trainer.learner.steps + 1}", trainer.learner.clock
    try:
        yield
    except RankFailed as error:
        raise RankFailed(f"{step}, {clock.stage}: ", error) from error
    except RunError:
        raise
    except BatchError as error:
        run, trust = nearby(trainer.run.path), trust_option(settings_of(trainer.config))
        raise RunError(
            f"{step} failed: ",
            error,
            "\nMend what the error names: a rule, your code or the reward. Then start anew:\n"
            f"  rlobj train --from {run}{trust} --preset FILE.yaml",
        ) from error
    except RlobjError as error:
        raise RunError(f"{step} failed: ", error) from error
    except OSError as error:
        raise RunError(f"{step} could not be written: {error}") from error
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"{step} ran out of GPU memory: {error}\nLower training.micro_batch_tokens or "
            "sampling.batch_tokens, or use ",
            Setting("training.gradient_checkpointing", True),
        ) from error
    except RuntimeError as error:  # of a collective in a backward pass, for example
        error.add_note(f"rank {trainer.comm.rank} was in {step}, {clock.stage}")
        raise
