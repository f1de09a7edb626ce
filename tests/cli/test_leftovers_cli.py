"""What newcomers stumble over: being offline, wrong places, silence, numbers without a scale."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import datasets
import datasets.config
import pytest
from rich.console import Console
from typer.testing import CliRunner

from rlobj.base.errors import ConfigError, DataError
from rlobj.data.hub import HubSource, first_available, hub_rows
from rlobj.training import RunDirectory
from rlobj_cli.app import app
from rlobj_cli.screen.charts import scale_label, steps_axis
from rlobj_cli.screen.console import working
from rlobj_cli.serve import _last_line
from rlobj_cli.train.progress import watch

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def closed_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of a hub that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return address


def test_a_hub_out_of_reach_is_told_at_once_with_what_to_type(closed_hub: str) -> None:
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        first_available([HubSource("a/a"), HubSource("b/b")], "numbers", "Give --data-dir DIR.")
    with pytest.raises(DataError, match=f"'c/c'.*{closed_hub} cannot be reached") as other:
        list(hub_rows("c/c", None, "train", fallback=True))
    assert time.monotonic() - began < 10  # one package's retries alone are 23 seconds of sleep
    first, *tried, mirror, instead = str(caught.value).splitlines()
    assert f"{closed_hub} cannot be reached" in first
    assert tried == [f"  {name}[train]: not in the local cache" for name in ("a/a", "b/b")]
    assert instead == "Give --data-dir DIR."
    for text in (mirror, str(other.value)):
        assert "HF_ENDPOINT=URL" in text
        assert "HF_HUB_OFFLINE=1" in text


def test_a_local_copy_asks_no_hub(closed_hub: str, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "train.jsonl").write_text('{"problem": "Q?", "answer": "1"}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.utils.get_session", lambda: pytest.fail("asked"))
        assert len(list(hub_rows(str(tmp_path / "copy"), None, "train", fallback=True))) == 1


def test_what_the_cache_holds_is_read_without_the_hub(
    closed_hub: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    part = datasets.Dataset.from_list([{"problem": "Q?", "answer": "1"}])
    asked = []

    def cached(identifier: str, config: str | None, split: str) -> datasets.Dataset:
        asked.append((identifier, datasets.config.HF_HUB_OFFLINE))
        return part

    monkeypatch.setattr(datasets, "load_dataset", cached)
    assert first_available([HubSource("a/a")], "numbers", "")[0].id == "a/a"
    assert asked == [("a/a", True)]
    assert "comes from the local cache" in caplog.text


def shown(width: int = 80, *, terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        force_interactive=terminal,
        color_system=None,
    )


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("command", [["train"], ["eval", "MODEL"], ["eval", "score", "x.jsonl"]])
def test_a_data_folder_that_is_none_is_refused(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, reason in (("file", "is a file"), ("gone", "no such folder")):
        result = runner.invoke(app, [*command, "--data-dir", str(tmp_path / name)])
        assert result.exit_code == 2
        assert reason in " ".join(result.output.split()).replace(" │ │ ", " ")


def test_train_looks_for_named_data_in_its_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLOBJ_DATA_DIR", raising=False)
    found: list[str | None] = []
    seen = lambda *_: found.append(os.environ.get("RLOBJ_DATA_DIR"))  # noqa: E731
    monkeypatch.setattr("rlobj_cli.train.running.start", seen)
    words = ["train", "--preset", "stapo", "--data-dir", str(tmp_path)]
    assert runner.invoke(app, words).exit_code == 0
    assert found == [str(tmp_path)]
    assert "RLOBJ_DATA_DIR" not in os.environ  # no other command of this process is told


def test_work_shows_how_long_it_takes_and_the_news() -> None:
    console = shown(terminal=True)
    with working(console, "starting", lambda: "shard 3 of 9"):
        time.sleep(0.05)
    assert "starting, 0 s" in printed(console)
    assert "shard 3 of 9" in printed(console)
    quiet = shown()
    with working(quiet, "starting"):
        pass
    assert printed(quiet) == ""


def test_the_last_line_of_a_log_comes_without_its_colours(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert _last_line(log) == ""
    log.write_text("first\n\x1b[32mloading\x1b[0m 1/9\rloading 2/9\n\n")
    assert _last_line(log) == "loading 2/9"


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_the_header_waits_until_the_run_is_not_refused(terminal: bool) -> None:
    console = shown(terminal=terminal)
    calls: list[str] = []
    with watch(console, 5, 0, [], lambda: calls.append("header")) as screen:
        assert calls == []
        screen.warm_starting(1, 2, 0.5)
        screen.started({"device": "cpu", "run": "here"})
        assert calls == ["header"]


@pytest.mark.slow
def test_a_refused_strategy_is_the_only_thing_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ["train", "--preset", "stapo", "--strategy", "fsdp2", "--out", str(tmp_path / "run")]
    result = runner.invoke(app, words)
    assert result.exit_code == 2
    assert "needs a GPU" in result.output
    assert "rlobj train  stapo" not in result.output


@pytest.mark.parametrize(
    ("value", "span", "text"),
    [
        (0.5, 0.4, "0.500"),
        (0.99985, 0.0003, "0.999850"),
        (12345.6, 8000, "12,346"),
        (1.0, 0.0, "1.00"),
        (0.0, 0.0, "0.00"),
    ],
)
def test_a_scale_has_the_digits_that_tell_its_ends_apart(value, span, text) -> None:
    assert scale_label(value, span) == text
    assert len(text) <= 8  # the room in front of a chart


def test_an_axis_of_steps_has_both_ends() -> None:
    assert steps_axis(1, 12000, 20) == "step 1        12,000"


@pytest.mark.slow
def test_a_table_is_written_without_an_import(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from rlobj.training import RunDirectory\n"
        "assert 'pyarrow' not in sys.modules and 'pandas' not in sys.modules\n"
        f"run = RunDirectory({str(tmp_path)!r})\n"
        "with run.locked():\n"
        "    before = set(sys.modules)\n"
        "    run.write_table('table.parquet', {'a': [1, None], 'b': ['x', 'y'], 'c': [0.5, 1.0]})\n"
        "    print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert datasets.Dataset.from_parquet(str(tmp_path / "table.parquet"))["a"][:] == [1, None]


def test_a_place_that_is_no_run_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "stapo-1").mkdir()
    for name, reason in (
        ("file", "is a file, and a run is a folder"),
        ("stapo-2", "no such folder. Did you mean '.*stapo-1'"),
        ("stapo-1", "has no config.resolved.yaml"),
    ):
        with pytest.raises(ConfigError, match=f"{name} is not a run: .*{reason}"):
            RunDirectory.open(tmp_path / name)


def test_a_folder_or_nothing_is_no_configuration(tmp_path: Path) -> None:
    for name, reason in ((".", "is a folder, not a YAML file"), ("x.yaml", "is not there")):
        result = runner.invoke(app, ["train", "--config", str(tmp_path / name)])
        assert result.exit_code == 2
        assert reason in result.output
