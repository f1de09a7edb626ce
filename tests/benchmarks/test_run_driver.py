"""The processes of many runs: how they end, and what is kept of them."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from benchmarks import driver
from benchmarks.driver import Job

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")


def work(go: Path, out: Path) -> dict[str, str]:
    """Wait for a file; one with text makes the run fail."""
    out.mkdir()
    (out / "kept").touch(), (out / "dropped").touch()
    while not go.exists():
        time.sleep(0.01)
    if text := go.read_text():
        raise RuntimeError(text)
    return {"fact": "yes"}


def test_a_run_is_done_with_its_facts_or_failed_with_its_log(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    for name, text in (("good", ""), ("bad", "no such luck")):
        (tmp_path / f"{name}.go").write_text(text)
    jobs = [
        Job(tmp_path / n, partial(work, tmp_path / f"{n}.go"), ["kept"]) for n in ("good", "bad")
    ]
    driver.make(jobs, 1, lambda *each: told.append(each))
    good, bad = (job.out for job in jobs)
    assert {entry.name for entry in good.iterdir()} == {"kept", "done"}
    assert '"fact": "yes"' in (good / "done").read_text()
    assert {entry.name for entry in bad.iterdir()} == {"kept", "failed", "log"}
    assert driver.last_lines(bad, 1) == "    RuntimeError: no such luck\n"
    ends = [(0, "running"), (0, "done"), (1, "running")]
    assert told == [*ends, (1, "failed: its process ended with exit status 1")]
    with pytest.raises(ValueError, match="two jobs have the same folder"):
        driver.make([jobs[0], jobs[0]], 1, lambda *each: None)
