"""Settings that are `auto`: what a new run chooses, says, writes and keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import metrics
from tiny import EIGHT, tiny_config

import rlobj
from rlobj.base.errors import ConfigError, MissingExtra
from rlobj.base.yaml import dump_yaml
from rlobj.data import Problem, load_problems
from rlobj.data.problems import known_problems
from rlobj.ranks import ProcessGroup
from rlobj.runs.configuration import read_settings
from rlobj.settings.building import compose
from rlobj.settings.layers import flattened
from rlobj.settings.run_config import RunConfig
from rlobj.sizing.choosing import (
    choose_settings,
    held_out_share,
    settled,
)
from rlobj.sizing.fitting import Choice
from rlobj.sizing.memory import estimate
from rlobj.sizing.sizes import Cards
from rlobj.training import Callback, CallerInputs, run_training
from rlobj.training.parallel import open_parallel
from rlobj.training.resolving import Hardware, ResolvedRun, RunRequest, resolve

GIB = 1 << 30
SETTINGS = ("sampling.engine", "training.strategy", "training.gradient_checkpointing",
            "training.micro_batch_tokens", "sampling.vllm.gpu_memory_utilization",
            "sampling.vllm.sleep_level")  # fmt: skip


def named(**sections: Any) -> RunConfig:
    model = {"model": {"name": "an/8B", **sections.pop("model", {})}}
    return compose("stapo", [("here", {**model, "data": {"source": "x.jsonl"}, **sections})])


def chosen(config: RunConfig, cards: Cards | None = None, **more: Any) -> dict[str, Any]:
    made = choose_settings(config, EIGHT, cards, **more)
    return {each.setting: each.value for each in made}


def explained(choices: list[Choice]) -> str:
    return ResolvedRun(compose("stapo"), Path("run"), choices=choices).chosen


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.setattr("rlobj.sizing.choosing.check_vllm", lambda: ("vllm", "0.30.0"))


def test_recomputation_is_not_chosen_where_prompts_are_always_shared(vllm):
    cards = Cards(8, 80 * GIB)
    config = named(training={"shared_prompts": True}, sampling={"max_tokens": 1024})
    made = choose_settings(config, EIGHT, cards)
    config = settled(config, made)
    assert config.training.gradient_checkpointing is False
    assert estimate(config, EIGHT, config.training.strategy, 8, cards.bytes).fits
    assert "prompts cannot be shared with it" in explained(made)


def test_an_engine_that_draws_all_the_time_does_not_sleep(vllm):
    cards = Cards(8, 80 * GIB)
    for schedule, level in (("steps", 2), ("continuous", 0)):
        made = chosen(named(sampling={"schedule": schedule}), cards)
        assert (made["sampling.engine"], made["sampling.vllm.sleep_level"]) == ("vllm", level)


def test_vllm_gets_the_adapter_alone_where_it_can_keep_the_other_weights(vllm):
    cards = Cards(8, 80 * GIB)

    def sync(engine: str, given: str = "auto", rank: int = 16, level: Any = "auto") -> Any:
        lora = {"lora": {"rank": rank, "sync": given}}
        sampling = {"engine": engine, "vllm": {"sleep_level": level}}
        found = chosen(named(model=lora, sampling=sampling), cards)
        return found.get("model.lora.sync"), found.get("sampling.vllm.sleep_level")

    assert sync("vllm") == ("adapter", 1)
    assert sync("vllm", "merged") == (None, 2)
    assert sync("vllm", level=2) == ("merged", None)
    assert sync("vllm-server")[0] == "adapter"
    assert sync("vllm-server", rank=513)[0] == "merged"
    assert sync("transformers")[0] == "merged"
    with pytest.raises(ConfigError, match=r"transformers takes no adapters; use .*merged"):
        sync("transformers", "adapter")


@pytest.mark.parametrize("config", [named(), compose("stapo")], ids=["a model", "embedded"])
def test_a_cpu_and_the_embedded_policy_have_the_usual_values(config, vllm):
    cards = None if config.model.name else Cards(8, 80 * GIB)
    assert list(chosen(config, cards).values()) == [
        "transformers",
        "ddp",
        False,
        16384,
        0.5,
        1,
    ]


def test_a_model_whose_size_cannot_be_read_gets_the_values_of_a_cpu_and_says_why(vllm, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "of-nobody"}')
    model = {"name": str(tmp_path), "trust_remote_code": True}
    hardware = Hardware(ProcessGroup(), Cards(8, 80 * GIB))
    asked = RunRequest(named(model=model, evaluation={"every": 0}), tmp_path)
    run = resolve(asked, hardware, CallerInputs())
    training = run.config.training
    assert (training.strategy, training.micro_batch_tokens) == ("ddp", 16384)
    reason = f"cannot read the config.json of {tmp_path}: ValueError: "
    said = [line for line in run.chosen.splitlines() if reason in line]
    assert {line.partition("=")[0] for line in said} == {
        *("training.strategy", "training.gradient_checkpointing", "training.micro_batch_tokens"),
    }
    config = named(training={"strategy": "fsdp2", "micro_batch_tokens": 4096})
    assert "training.strategy" not in explained(choose_settings(config, None, Cards(8, 80)))


def test_the_slow_engine_says_why(monkeypatch):
    def missing():
        raise MissingExtra("vllm", "vllm", "sampling with vLLM")

    cards = Cards(8, 80 * GIB)
    monkeypatch.setattr("rlobj.sizing.choosing.check_vllm", missing)
    text = explained(choose_settings(named(), EIGHT, cards))
    assert "sampling.engine=transformers: sampling with vLLM needs" in text
    assert "pip install -e '.[vllm]'" in text
    ahead = named(sampling={"async_depth": 1}, objective={"mismatch": {"kind": "truncate"}})
    assert "sampling.engine=vllm-server" in explained(choose_settings(ahead, EIGHT, cards))


def write_problems(folder: Path, count: int, name: str = "problems.jsonl") -> Path:
    rows = [
        {"prompt": f"{i % 10},{i // 10}=", "answer": str(max(i % 10, i // 10))}
        for i in range(count)
    ]
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(("count", "low", "high"), [(10_000, 250, 256), (400, 19, 20), (19, 0, 0)])
@pytest.mark.parametrize("answers", [{"answer": "1"}, {}], ids=["answers", "no answers"])
def test_a_source_without_a_test_part_is_split(tmp_path, count, low, high, answers):
    file = tmp_path / "p.jsonl"
    rows = [{"prompt": f"{i}?", **answers} for i in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewards = {} if answers else {"rewards": {"kind": "reward_model", "model": "a/judge"}}
    config = named(data={"source": str(file), "template": "{prompt}"}, **rewards)
    limited = named(data={"source": str(file), "template": "{prompt}", "limit": 20}, **rewards)
    made, read = held_out_share(config)
    assert held_out_share(limited)[0] == made
    data = settled(config, made).data
    held_out = load_problems(data, "test", answers=bool(answers)) if data.test_fraction else []
    assert low <= len(held_out) <= high
    train = load_problems(data, "train", answers=bool(answers))
    assert len(held_out) + len(train) == count
    assert read == ({"train": train, "test": held_out} if held_out else {})
    assert (
        not held_out
        or f"{len(held_out)} of {count} problems are held out, as {file} is one file"
        in explained(made)
    )


def test_held_out_problems_that_are_trained_on_are_counted():
    train = [Problem(str(i), f"What is\n{i} + 1?", "") for i in range(5)]
    test = [Problem(str(i), f" What  is {i} + 1?", "") for i in range(3, 7)]
    assert known_problems(train, test[2:]) is None
    assert str(known_problems(train, test)).startswith("2 of 4 held-out problems are also training")


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about a machine without a GPU")
def test_a_run_writes_what_it_chose_says_why_and_keeps_it(policy, tmp_path):
    heard: dict[str, str] = {}

    class Listener(Callback):
        def started(self, facts):
            heard.update(facts)

    data = {"source": str(write_problems(tmp_path, 100)), "template": "{prompt}"}
    config = tiny_config(
        policy,
        data=data,
        sampling={"engine": "auto"},
        evaluation={"every": 1, "samples": 1},
        training={"steps": 1},
    )
    run = tmp_path / "run"
    run_training(config, run, CallerInputs(callbacks=[Listener()]))
    assert "sampling.engine=transformers: there is no GPU" in heard["chosen"]
    assert "5 of 100 problems are held out" in heard["chosen"]
    assert "95 to train on, 5 held out" in heard["problems"]
    stored, flat = read_settings(run), flattened(read_settings(run))
    assert "auto" not in [flat[name] for name in (*SETTINGS, "data.test_fraction")]
    stored["training"]["micro_batch_tokens"] = 4096  # as a larger GPU has chosen
    (run / "config.resolved.yaml").write_text(dump_yaml(stored))
    rlobj.resume(run, settings={"training.steps": 2, "training.micro_batch_tokens": "auto"})
    again = read_settings(run)
    assert again["training"] == {**stored["training"], "steps": 2}
    assert again["data"] == stored["data"]
    assert [line["step"] for line in metrics(run)] == [0, 1, 2]


# Processes.


def opened(strategy: Any) -> Any:
    return open_parallel(strategy, max_grad_norm=1.0, autocast=None, seed=0)


def test_error_for_zero_without_deepspeed_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[deepspeed\]', in the checkout"):
        opened("zero2")


@pytest.mark.parametrize(
    ("settings", "extra"),
    [({"training.strategy": "zero2"}, "deepspeed"), ({"model.lora.rank": 2}, "lora")],
)
def test_a_missing_extra_is_named_before_processes_are_started(
    monkeypatch, tmp_path, settings, extra
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlobj.settings.starting.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("rlobj.training.run.Hardware", None)  # is asked before they are started
    with pytest.raises(MissingExtra, match=rf"pip install -e '\.\[{extra}\]', in the checkout"):
        rlobj.train("grpo", data="addition", settings=settings, processes=2, progress=False)
    assert not [*tmp_path.iterdir()]


def test_an_old_deepspeed_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.18.9")
    with pytest.raises(
        ConfigError, match=r"found deepspeed 0\.18\.9.* pip install 'deepspeed>=0\.19\.2'"
    ):
        opened("zero2")


def test_processes_without_an_address_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set"):
        opened("auto")
