"""How a launch ends: which rank its report blames, and which files it leaves."""

from __future__ import annotations

import signal

import pytest
from test_launch import after, guarded, python, run, short_waits

from rlobj.training.parallel.launcher import launch

__all__ = ["guarded", "run", "short_waits"]


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "processes"), [(1, 2), (0, 3)])
def test_a_stopped_rank_is_blamed_and_not_those_that_wait_for_it(run, tmp_path, stopped, processes):
    code = (
        "import os, signal, sys, time\n"
        "stopped, file = sys.argv[1:]\n"
        "if os.environ['RANK'] == stopped:\n"
        "    print('the last words', flush=True)\n"
        "    open(file, 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "while not os.path.exists(file): time.sleep(0.02)\n"
        "time.sleep(0.2)\n"
        "sys.exit(f'no progress on rank {stopped}')\n"
    )
    ended, shown, report = run(code, str(stopped), str(tmp_path / "file"), processes=processes)
    assert ended == 1
    head = f"rank {stopped} of {processes} processes failed: a signal that stops it, such as SIGST"
    assert head in report
    assert "the last words" in shown + report
    assert "out of memory" not in report
    assert f"exit code 1 (rank {1 - stopped})" in report


@pytest.mark.slow
def test_a_rank_that_fails_beside_a_stopped_one_is_blamed(run):
    code = (
        "import os, signal, sys, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)\n"
        "sys.exit(3)\n"
    )
    ended, _, report = run(code)
    assert (ended, "rank 0 of 2 processes failed: exit code 3" in report) == (3, True)
    assert "SIGSTOP (rank 1)" in report


def test_no_file_is_left_where_no_report_names_one(tmp_path):
    """The output of rank 0 is on the terminal, and a launch that is refused wrote nothing."""
    code = "import os, time; assert os.environ['RANK'] == '1'; time.sleep(60)"
    assert launch([], 2, program=python(code)) == 1
    with pytest.raises(FileNotFoundError):
        launch([], 2, program=[str(tmp_path / "missing")])
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("guarded")
def test_no_file_is_left_after_a_signal(tmp_path):
    ready = [tmp_path / f"ready-{rank}" for rank in range(2)]
    code = (
        "import os, sys, time\n"
        "open(f\"{sys.argv[1]}/ready-{os.environ['RANK']}\", 'w')\n"
        "time.sleep(60)\n"
    )
    thread = after(lambda: all(each.exists() for each in ready), signal.SIGTERM)
    assert launch([str(tmp_path)], 2, program=python(code)) == 128 + signal.SIGTERM
    thread.join()
    assert list((tmp_path / "temporary").iterdir()) == []
