"""The measuring of heads: each in a process of its own, skipped by name where it is missing."""

import importlib.util
import sys
from pathlib import Path

import pytest

from rlobj.errors import RunError
from rlobj.scoring import bench
from rlobj.scoring.bench import Point, Row

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "heads.py"


@pytest.fixture(scope="module")
def heads():
    spec = importlib.util.spec_from_file_location("heads_benchmark", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def points(rows=600, vocabulary=20_000):
    return [Point(rows, 16, vocabulary, "both", backward) for backward in (False, True)]


@pytest.mark.slow
def test_time_and_memory_of_each_method():
    rows = bench.run(points(), rounds=2)
    by = {(row.method, row.point.backward): row for row in rows}
    assert set(by) == {(name, backward) for name in bench.METHODS for backward in (False, True)}
    for row in rows:
        assert len(row.seconds) == 2
        assert min(row.seconds) > 0
    logits = 600 * 20_000 * 4 / 2**20
    assert by["autograd", False].mib > 1.5 * logits  # the logits and their log-probs
    assert by["rlobj", True].mib < logits


@pytest.mark.slow
def test_a_method_that_is_not_installed_is_skipped_with_the_reason(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from rlobj.scoring import bench\n"
        "def absent(*_):\n"
        "    import a_head_that_nobody_wrote\n"
        "def broken(*_):\n"
        "    raise ValueError('of its own')\n"
        "bench.child(sys.argv[2], {'absent': absent, 'broken': broken})\n"
    )
    command = [sys.executable, str(program)]
    (row,) = bench.run(points()[:1], ["absent"], command=command)
    assert row.seconds == ()
    assert "a_head_that_nobody_wrote" in row.skipped
    with pytest.raises(RunError, match=r"'broken' failed .*\n(.*\n)*.*of its own"):
        bench.run(points()[:1], ["broken"], command=command)


def test_the_grid_has_every_size_and_the_quick_one_the_smallest():
    sizes = {(p.rows, p.width, p.vocabulary) for p in bench.grid()}
    assert len(sizes) == 8
    assert {(p.rows, p.vocabulary) for p in bench.grid(quick=True)} == {(512, 32_000)}
    assert {p.mode for p in bench.grid() if not p.backward} == set(bench.MODES)


def test_table_compares_with_the_fastest_and_the_leanest(heads):
    point = points()[1]
    rows = [
        Row("rlobj", point, (1.0, 1.0), 10.0),
        Row("products alone", point, (0.8, 0.5), 9.0),
        Row("TRL fused", point, (4.0, 5.0), 100.0),
        Row("autograd", point, (2.0, 2.5), 400.0),
        Row("prime-rl", point, skipped="ImportError: no module"),
    ]
    text = heads.table(rows)
    assert "prime-rl         skipped: ImportError: no module" in text
    assert "0.44x the time of autograd, 0.10x the memory of TRL fused" in text
    assert "1.62x the bare products, 0.22x the time of TRL fused" in text


def test_rows_come_back_from_a_file_as_they_were(heads, tmp_path):
    rows = [Row("rlobj", points()[0], (0.25,), 3.0), Row("other", points()[0], skipped="gone")]
    heads.save(rows, tmp_path / "rows.json")
    assert heads.load(tmp_path / "rows.json") == rows
