"""The launcher with small real processes: environments, ends, and reports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import alive, wait_until

from rlobj.base.errors import ConfigError
from rlobj.training.parallel import launcher as launching
from rlobj.training.parallel.launcher import launch

LISTEN = """
import os, signal, sys, time
rank, folder = os.environ["RANK"], sys.argv[1]
got = []
def hear(number, frame): got.append(number)
for each in (signal.SIGTERM, signal.SIGINT): signal.signal(each, hear)
stubborn = "stubborn" in sys.argv
open(f"{folder}/ready-{rank}", "w").write(str(os.getpid()))
while stubborn or not got: time.sleep(0.02)
time.sleep(1.0)  # the step and its checkpoint
open(f"{folder}/signals-{rank}", "w").write(" ".join(map(str, got)))
"""
LAUNCH = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
launch = runpy.run_path({file!r}, run_name="launcher")["launch"]
sys.exit(launch(sys.argv[2:], 2, program=[sys.executable, "-c", sys.argv[1]]))
""".replace("{file!r}", repr(launching.__file__))
"""The file alone, because `import rlobj.training` takes seconds."""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch, tmp_path):
    """Short waits, temporary files in the test's folder, and no other launcher."""
    monkeypatch.setattr(launching, "GRACE", 1.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "logs").mkdir()
    for name in ("WORLD_SIZE", "RANK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path, capfd):
    """(exit code, stdout, stderr) of a launch; its logs are in tmp_path/logs."""

    def run(code: str, *arguments: str, processes: int = 2) -> tuple[int, str, str]:
        ended = launch(arguments, processes, tmp_path / "logs", program=python(code))
        return ended, *capfd.readouterr()

    return run


def after(condition: Callable[[], Any], *signals: int, apart: float = 0.3) -> threading.Thread:
    """Send signals to this process once the condition holds."""

    def send() -> None:
        wait_until(condition)
        for number in signals:
            os.kill(os.getpid(), number)
            time.sleep(apart)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def guarded():
    """Ignore SIGTERM outside of the launcher, so that it cannot end the tests."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


# What the ranks get.


def test_every_rank_gets_its_variables_and_only_rank_0_the_terminal(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("WORLD_SIZE", "1")
    code = (
        "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:],"
        " sys.stdin.read(), os.getsid(0) == os.getpid()]))"
    )
    words = ["eval", "--processes", "3", "embedded"]
    ended, shown, errors = run(code, *words, processes=3)
    assert (ended, errors) == (0, "")
    texts = [shown, *((tmp_path / "logs" / f"rank-{rank}.log").read_text() for rank in (1, 2))]
    ports = set()
    for rank, text in enumerate(texts):
        environment, arguments, stdin, own_session = json.loads(text)
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "3"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["OMP_NUM_THREADS"] == "1"
        assert "TORCHELASTIC_USE_AGENT_STORE" not in environment
        assert arguments == words
        assert (stdin, own_session) == ("", True)
        ports.add(int(environment["MASTER_PORT"]))
    assert len(ports) == 1


def test_the_threads_that_the_user_set_are_kept(run, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run("import os; print(os.environ['OMP_NUM_THREADS'])")[1] == "3\n"


def test_a_launch_inside_a_launch_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"processes=2, but WORLD_SIZE is 4: a launcher"):
        launch([], 2, program=python(""))
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match="at least 1"):
        launch([], 0, program=python(""))


# A rank that fails.


def test_a_rank_that_fails_ends_the_others_and_is_shown_with_its_traceback(run, tmp_path):
    code = (
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    print('the last words')\n"
        "    sys.excepthook = lambda *e: (sys.__excepthook__(*e), os._exit(3))\n"
        "    raise ValueError('the cause')\n"
        "time.sleep(600)\n"
    )
    ended, _, report = run(code, processes=3)
    assert ended == 3
    ends = "1 of 3 processes failed:\nrank 0: SIGKILL\nrank 1: the exit status 3\nrank 2: SIGKILL\n"
    assert ends in report
    assert "the last words\nTraceback (most recent call last):" in report
    assert "ValueError: the cause" in report
    assert str(tmp_path / "logs" / "rank-1.log") in report


def test_a_crash_in_compiled_code_shows_its_line(run):
    code = "import os, signal\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSEGV)"
    ended, _, report = run(code)
    assert ended == 1
    assert "SIGSEGV" in report
    assert 'File "<string>", line 2' in report


@pytest.mark.slow
def test_a_rank_that_goes_on_is_killed_with_what_it_started(run, tmp_path):
    code = (
        "import os, signal, subprocess, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    while not os.path.exists(sys.argv[1] + '/pid'): time.sleep(0.02)\n"
        "    sys.exit(5)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1] + '/part', 'w').write(str(child.pid))\n"
        "os.rename(sys.argv[1] + '/part', sys.argv[1] + '/pid')\n"
        "time.sleep(600)\n"
    )
    ended, _, report = run(code, str(tmp_path))
    assert ended == 5
    assert "rank 0: SIGKILL\n" in report
    wait_until(lambda: not alive(int((tmp_path / "pid").read_text())))


@pytest.mark.slow
def test_the_logs_are_left_only_if_a_rank_failed(tmp_path, capfd):
    """A launch that is refused wrote nothing."""
    assert launch([], 2, program=python("print('fine')")) == 0
    with pytest.raises(FileNotFoundError):
        launch([], 2, program=[str(tmp_path / "missing")])
    assert list((tmp_path / "temporary").iterdir()) == []
    code = "import os; print('here'); assert os.environ['RANK'] == '0'"
    assert launch([], 2, program=python(code)) == 1
    [log] = re.findall(r"The end of (\S+):", capfd.readouterr().err)
    assert Path(log).read_text().startswith("here\nTraceback")
    assert Path(log).is_relative_to(tmp_path / "temporary")


# Signals.


@pytest.mark.slow
@pytest.mark.usefixtures("guarded")
def test_a_signal_reaches_every_rank_once_and_is_waited_for_without_limit(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(launching, "GRACE", 0.1)
    before = signal.getsignal(signal.SIGTERM)
    thread = after(lambda: len(list(tmp_path.glob("ready-*"))) == 2, signal.SIGTERM)
    ended, _, errors = run(LISTEN, str(tmp_path))
    thread.join()
    assert (ended, errors) == (0, "")
    received = [(tmp_path / f"signals-{rank}").read_text() for rank in range(2)]
    assert received == [str(int(signal.SIGTERM))] * 2
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
@pytest.mark.usefixtures("guarded")
def test_a_second_signal_kills(run, tmp_path):
    pids = [tmp_path / f"ready-{rank}" for rank in range(2)]
    two = (signal.SIGTERM, signal.SIGTERM)
    thread = after(lambda: all(p.exists() and p.read_text() for p in pids), *two)
    ended, _, errors = run(LISTEN, str(tmp_path), "stubborn")
    thread.join()
    assert (ended, errors) == (128 + signal.SIGTERM, "")
    assert not any(alive(int(pid.read_text())) for pid in pids)


@pytest.mark.slow
@pytest.mark.usefixtures("guarded")
def test_a_rank_that_ended_from_the_signal_does_not_keep_the_others_waiting(tmp_path):
    """SIGTERM ends a rank that is still loading; another rank would wait for it forever."""
    code = (
        "import os, signal, sys, time\n"
        "if os.environ['RANK'] == '0': signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "open(f\"{sys.argv[1]}/ready-{os.environ['RANK']}\", 'w')\n"
        "end = time.monotonic() + 600\n"
        "while time.monotonic() < end: time.sleep(0.1)\n"
    )
    thread = after(lambda: len(list(tmp_path.glob("ready-*"))) == 2, signal.SIGTERM)
    assert launch([str(tmp_path)], 2, program=python(code)) == 128 + signal.SIGTERM
    thread.join()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_no_rank_outlives_a_launcher_that_was_killed(tmp_path):
    process = subprocess.Popen([*python(LAUNCH), LISTEN, str(tmp_path)])
    pids = [tmp_path / f"ready-{rank}" for rank in range(2)]
    try:
        wait_until(lambda: all(pid.exists() and pid.read_text() for pid in pids))
        running = [int(pid.read_text()) for pid in pids]
        assert all(map(alive, running))
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not any(map(alive, running)))


def test_modules_in_the_current_folder_do_not_replace_installed_ones(tmp_path):
    """The folder may be the run of somebody else."""
    (tmp_path / "tokenize.py").write_text("open('executed', 'w')\n")
    file = launching.__file__
    code = f"import runpy; runpy.run_path({file!r}, run_name='x')['launch'](['--version'], 1)"
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True)
    assert not (tmp_path / "executed").exists()
