"""A score of several models: each problem's column names the teacher of its responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from runs import (
    QUICK,
    ROWS,
    ROWS_TEMPLATE,
    make_steps,
    metrics,
    open_trainer,
    ranks,
    write_config,
)
from safetensors.torch import load_file, save_file
from served import plain_server
from tiny import save_tiny_policy, tiny_config
from transformers import AutoModelForCausalLM
from vllm_tools import NEEDS_VLLM

import rlobj
from rlobj import ConfigError
from rlobj.runs.configuration import read_run_config
from rlobj.runs.tables import read_tables
from rlobj.scoring import PolicyScorer, score_samples
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import RoutedConfig, ScoreConfig
from rlobj.training import run_training
from rlobj.training.loop.step import run_step
from rlobj.training.new_run import prepared

SHAPE = "advantage + 0.3 * clip(teacher_gap, -5, 5) + 0.01 * teacher_entropy"
TOP = {"kind": "divergence", "against": "teacher", "of": "forward", "top": 3}
"""Of the three tokens that each teacher finds most likely."""


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("teachers")
    seeds = {"even": 1, "odd": 2}
    return {key: save_tiny_policy(folder / key, seed) for key, seed in seeds.items()}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Problems in the columns `kind` and `level`; the level of some is unknown to every teacher."""
    rows = [
        {**row, "kind": "odd" if row["prompt"][0] in "13" else "even", "level": number % 3}
        for number, row in enumerate(ROWS)
    ]
    file = tmp_path_factory.mktemp("data") / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def config_of(policy: Path, data: str, teacher: Any, **sections: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "data": {"source": data, "template": "{prompt}"},
        "rewards": {"kind": "exact"},
        "training": {"steps": 2, "updates_per_step": 2, "learning_rate": 5e-3},
        "output": {"tables_every": 1},
        "objective": {"shape": SHAPE, "penalties": [TOP]},
    }
    merged = {**settings, **sections}
    return prepared(tiny_config(policy, "dapo-loss", scores={"teacher": teacher}, **merged))


def routed(teachers: dict[str, Path], **entry: Any) -> dict[str, Any]:
    models = {key: {"model": str(m), "dtype": "float32", **entry} for key, m in teachers.items()}
    return {"by": "kind", "models": models}


def of(kind: str, sequences: Sequence[Any]) -> list[int]:
    """The responses to problems of a kind."""
    first = [build_tokenizer().decode(prompt)[0] for prompt, _ in sequences]
    return [i for i, digit in enumerate(first) if (digit in "13") == (kind == "odd")]


def test_each_response_has_the_log_probs_of_the_teacher_that_its_problem_names(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path
) -> None:
    run_training(config_of(policy, data, routed(teachers)), tmp_path / "run")
    for update in read_tables(tmp_path / "run", [1, 2]):
        table, found = update.table, {}
        for kind, folder in teachers.items():
            chosen = of(kind, update.sequences)
            assert chosen
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            with torch.no_grad():
                mine = [update.sequences[i] for i in chosen]
                found[kind] = score_samples(PolicyScorer(model), mine, entropy=True)
            rows = torch.isin(table.responses, torch.tensor(chosen))
            logprobs, entropy = (
                table.columns[f"teacher_{n}"][rows] for n in ("logprob", "entropy")
            )
            torch.testing.assert_close(logprobs, found[kind].logprobs)
            torch.testing.assert_close(entropy, found[kind].entropy)
        assert sum(len(scores.logprobs) for scores in found.values()) == len(table)
    lines = metrics(tmp_path / "run")
    parts = [lines[0][f"score/teacher.models.{kind}/gap"] for kind in teachers]
    assert min(parts) < lines[0]["score/teacher/gap"] < max(parts)
    assert lines[0]["train/grad_norm"] > 0


def test_two_names_of_one_teacher_are_one_teacher(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path
) -> None:
    both = routed({"even": teachers["even"], "odd": teachers["even"]})
    run_training(config_of(policy, data, both), tmp_path / "two")
    run_training(config_of(policy, data, both["models"]["even"]), tmp_path / "one")
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        for name, value in one.items():
            if name.startswith(("score/", "loss/", "train/", "objective/")):
                assert two[name] == pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True), name
        assert one["loss/divergence_teacher"] != 0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp2"])
def test_two_ranks_ask_the_same_teachers_as_one(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path, strategy: str
) -> None:
    config = config_of(policy, data, routed(teachers))
    run_training(config, tmp_path / "one")
    file = write_config(config, tmp_path / "config.yaml")
    words = ["train", "--config", file, "--model", policy, "--strategy", strategy]
    ranks([*words, "--out", tmp_path / "two"], 2)
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        names = ("loss/divergence_teacher", "score/teacher/gap", "score/teacher.models.odd/gap")
        for name in (*names, "loss/total"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=2e-5), name


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(**NEEDS_VLLM)
def test_one_of_the_teachers_may_be_a_server(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("RLOBJ_API_KEY", "plain")
    objective = {"shape": "teacher_gap", "penalties": [TOP]}
    sampling = {"engine": "transformers", "temperature": 1.0}
    settings: dict[str, Any] = {"objective": objective, "sampling": sampling}
    local = routed(teachers)
    run_training(config_of(policy, data, local, **settings), tmp_path / "local")
    with plain_server(teachers["odd"]) as (_, url):
        served = {**local, "models": {**local["models"], "odd": {"server": url}}}
        run_training(config_of(policy, data, served, **settings), tmp_path / "served")
    for one, two in zip(metrics(tmp_path / "local"), metrics(tmp_path / "served"), strict=True):
        for name in ("score/teacher.models.odd/gap", "score/teacher.models.even/gap"):
            assert two[name] == pytest.approx(one[name], abs=1e-4), name
        assert two["loss/divergence_teacher"] == pytest.approx(
            one["loss/divergence_teacher"], rel=1e-3
        )


def test_a_prompt_and_an_end_are_those_of_one_of_the_teachers(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path
) -> None:
    settings = routed(teachers)
    settings["models"]["odd"]["prompt"] = "{{ prompt }}{{ answer }},"
    with open_trainer(config_of(policy, data, settings), tmp_path / "run") as trainer:
        decode, seen = trainer.policy.tokenizer.decode, set()
        for response in trainer.collect().responses:
            [(name, prompt)] = response.score_prompts.items()
            problem = response.problem
            hint = f"{problem.answer}," if problem.extra["kind"] == "odd" else ""
            assert name == f"teacher.models.{problem.extra['kind']}"
            assert decode(prompt) == f"{problem.prompt}{hint}"
            seen.add(name)
    assert len(seen) == 2


def test_a_teacher_that_no_problem_of_a_step_names_is_not_asked(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in Path(data).read_text().splitlines()]
    (tmp_path / "even.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows if row["kind"] == "even")
    )
    config = config_of(policy, str(tmp_path / "even.jsonl"), routed(teachers))
    with open_trainer(config, tmp_path / "run") as trainer:
        asked: list[str] = []
        for name, score in trainer.learner.scores.all.items():

            def told(*inputs: Any, scorer: Any = score.scorer, of: str = name, **more: Any) -> Any:
                asked.append(of)
                return scorer(*inputs, **more)

            score.scorer = told  # type: ignore[assignment]
        run_step(trainer)
    assert {*asked} == {"teacher.models.even"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"by": "subject"}, r"scores\.teacher\.by: problem .* has no 'subject', and .* even, odd"),
        ({"by": "level"}, r"by: problem .* has '0' in the column 'level', and scores\.teacher\.mo"),
        (
            {"models": {"even": {"model": "policy", "ema": 0.5}}},
            r"models\.even .*expected a frozen",
        ),
        ({"models": {"even": "policy"}}, r"models\.even .*: expected a frozen .*; got 'policy'"),
        ({"models": {"even": "required"}}, r"models\.even .*: expected a frozen model"),
        ({"models": {}}, r"scores\.teacher\.models.*: .* at least 1"),
        ({"models": {"even": {"modl": "x"}}}, r"models\.even .*model, run or server; got .*modl"),
        ({"model": "x"}, r"scores\.teacher\.model .*unknown key"),
    ],
)
def test_mistakes_of_teachers_by_a_column_are_told_before_the_run(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path, changes: Any, message: str
) -> None:
    teacher = {**routed(teachers), **changes}
    with pytest.raises(ConfigError, match=message):
        run_training(config_of(policy, data, teacher), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_route_is_checked_before_a_run_and_its_values_may_be_numbers(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path
) -> None:
    """YAML reads 0 as a number."""
    numbers: Any = {number: str(teachers["even"]) for number in range(3)}
    scores: Any = {"teacher": {"by": "level", "models": numbers}}
    given: dict[str, Any] = {"model": str(policy), "data": data, "dry_run": True}
    objective = {"scores": ["teacher"], "shape": "advantage + teacher_gap"}
    settings = {**QUICK, "objective": objective, "scores": scores, **ROWS_TEMPLATE}
    rlobj.train("dapo-loss", settings=settings, **given)
    del numbers[2]
    with pytest.raises(ConfigError, match=r"by: problem .* has '2' in the column 'level', and"):
        rlobj.train("dapo-loss", settings=settings, **given)


@pytest.mark.parametrize(
    ("penalty", "shape"), [({**TOP, "top": None}, SHAPE), (TOP, "advantage + 0.1 * teacher_kl")]
)
def test_the_whole_vocabulary_of_several_teachers_is_refused(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path, penalty: Any, shape: str
) -> None:
    objective = {"shape": shape, "penalties": [penalty]}
    config = config_of(policy, data, routed(teachers), objective=objective)
    with pytest.raises(ConfigError, match=r"several models of one score .* with top: 20"):
        run_training(config, tmp_path / "run")


def test_each_teacher_is_checked_and_named(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path
) -> None:
    other = save_tiny_policy(tmp_path / "other", seed=3)
    config = config_of(policy, data, routed({**teachers, "odd": other}))
    make_steps(config, tmp_path / "run", 1)
    recorded: Any = read_run_config(tmp_path / "run").scores["teacher"]
    assert all(entry.digest for entry in recorded.models.values())
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"][3] += 1
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"scores\.teacher\.models\.odd\.model: .* has changed"):
        run_training(config, tmp_path / "run", resume=True)
    settings = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "5"}))
    config = config_of(policy, data, routed({**teachers, "odd": other}))
    with pytest.raises(ConfigError, match=r"use scores\.teacher\.models\.odd\.end="):
        run_training(config, tmp_path / "again")


def test_a_resumed_run_asks_the_same_teachers(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path
) -> None:
    checkpoint = {"every": 1, "best": False}
    config = config_of(policy, data, routed(teachers), checkpoint=checkpoint)
    run_training(config, tmp_path / "whole")
    make_steps(config, tmp_path / "cut", 1)
    run_training(config, tmp_path / "cut", resume=True)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_a_run_from_another_may_exchange_one_teacher_or_all(
    policy: Path, teachers: dict[str, Path], data: str, tmp_path: Path
) -> None:
    training = {"steps": 1}
    run_training(config_of(policy, data, routed(teachers), training=training), tmp_path / "first")
    for number, settings in enumerate(
        [
            {"scores.teacher.models.odd.model": str(policy)},
            {"scores.teacher.models.odd": str(policy)},
            {"scores.teacher.model": str(policy)},
        ]
    ):
        out = tmp_path / f"run{number}"
        rlobj.train(
            from_run=tmp_path / "first", settings={"training.steps": 1, **settings}, out=out
        )
        scores: Any = read_run_config(out).scores["teacher"]
        last = scores.model if number == 2 else scores.models["odd"].model
        assert last == str(policy)
        if number < 2:
            assert scores.models["even"].model == str(teachers["even"])


def test_teachers_by_a_column_may_be_objects() -> None:
    teacher = ScoreConfig(model="org/teacher")
    assert RoutedConfig(by="topic", models={"math": teacher}).models["math"] == teacher
    with pytest.raises(ConfigError, match="expected a frozen model"):
        RoutedConfig(by="topic", models={"math": ScoreConfig()})
