"""How to go on with a run that has stopped: what an error says, and the screen."""

import contextlib
from collections.abc import Iterator

from rlobj.base.errors import BatchError, RunError
from rlobj.conversations.environment import NoRoom
from rlobj.runs.layout import is_run
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.run_config import settings_of
from rlobj.settings.trust import trust_option
from rlobj.training.resolving import RunRequest
from rlobj.training.resumed_run import recorded_objects


def how_to_go_on(run: RunRequest) -> str:
    """How to continue a run that has stopped."""
    done = RunFolder(run.path).steps_saved()
    saved = f"the newest checkpoint at step {done}" if done else "no checkpoint yet"
    trust = trust_option(settings_of(run.config))
    if objects := recorded_objects(run.config):  # which no command line can name
        arguments = [repr(str(run.path)), *(f"{name}=..." for name in objects)]
        arguments += ["trust=True"] if trust else []
        return f"Stopped with {saved}. Continue with:\n  rlobj.resume({', '.join(arguments)})"
    processes = f" --processes {run.processes}" if run.processes > 1 else ""
    return f"Stopped with {saved}. Continue with:\n  rlobj resume {run.path}{trust}{processes}"


@contextlib.contextmanager
def saying_how_to_go_on(run: RunRequest) -> Iterator[None]:
    """Inside, an error that ends the run says how to continue it, and a Ctrl-C has it as a note.

    Not if the run has written nothing, if the same step would fail again, or if it stopped because
    of a finding that it is asked to stop on, whose error has its own advice.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if is_run(run.path):
            error.add_note(how_to_go_on(run))
        raise
    except RunError as error:
        fails_again = isinstance(error.__cause__, BatchError | NoRoom)
        if not is_run(run.path) or fails_again or error.finding in run.config.training.stop_on:
            raise
        raise RunError(error, "\n", how_to_go_on(run), finding=error.finding) from error
