"""The embedded policy: its tasks and profiles, and the recipe of the weights that are shipped."""

from __future__ import annotations

import math
import re

import pytest
import torch
from benchmarks.embedded_policy import (
    RECIPES,
    _table,
    build_policy,
    build_tokenizer,
    demonstration,
    trained_policy,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlobj.conversations.opening import Calculator
from rlobj.data import DataConfig, load_problems
from rlobj.data.tasks import TASKS
from rlobj.models.embedded import ALPHABETS, embedded_policy
from rlobj.settings.building import build_config
from rlobj.settings.presets import load_preset, preset_names
from rlobj.settings.profiles import PROFILES


def demonstrations(task, split):
    return [demonstration(task, problem) for problem in TASKS[task].problems(split)]


def same_weights(left, right):
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "total", "test", "answer"),
    [
        ("addition", 1000, 202, sum),
        ("max-digits", 100, 21, max),
        ("scratchpad", 10_000, 2_009, sum),
        ("calculator", 8100, 1621, math.prod),
    ],
)
def test_no_test_problem_is_a_reordered_training_problem(name, total, test, answer):
    families = {}
    for split in ("train", "test"):
        problems = TASKS[name].problems(split)
        numbers = [[*map(int, re.findall("[0-9]+", problem.prompt))] for problem in problems]
        families[split] = [tuple(sorted(each)) for each in numbers]
        for problem, operands in zip(problems, numbers, strict=True):
            assert int(problem.answer) == answer(operands)
    assert not set(families["train"]) & set(families["test"])
    assert len(families["train"]) + len(families["test"]) == total
    assert len(families["test"]) == test


def test_the_split_is_the_same_on_every_machine():
    first = [problem.prompt for problem in TASKS["addition"].problems("test")[:4]]
    assert first == ["2+5+0=", "1+6+2=", "2+2+5=", "0+7+0="]
    with pytest.raises(ValueError, match="splits train and test, not 'validation'"):
        load_problems(DataConfig(source="addition", split="validation"), "train")


@given(st.text(alphabet=ALPHABETS["calculator"], min_size=1))
def test_decoding_restores_text_over_the_alphabet(text):
    tokenizer = build_tokenizer(ALPHABETS["calculator"])
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("task", list(TASKS))
def test_a_shipped_folder_is_a_transformers_model_with_the_tokenizer_of_its_task(task):
    folder, built = embedded_policy(task), build_tokenizer(ALPHABETS[task])
    model, tokenizer = (
        kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    assert tokenizer(ALPHABETS[task]).input_ids == built(ALPHABETS[task]).input_ids
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.dtype == torch.float32


def test_a_policy_depends_only_on_its_seed():
    torch.manual_seed(1)
    first = build_policy(3)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))  # building it drew nothing
    torch.manual_seed(2)
    assert same_weights(first, build_policy(3))
    assert not same_weights(first, build_policy(4))


@pytest.mark.parametrize("task", list(PROFILES))
def test_a_profile_replaces_the_scale_of_every_preset_and_keeps_its_objective(task):
    assert embedded_policy(task).is_dir()
    environment = TASKS[task].environment
    for name in preset_names() if task == "scratchpad" else ["stapo"]:
        preset = (name, load_preset(name).config)
        config = build_config([preset, ("the profile", PROFILES[task])])
        assert config.objective == build_config([preset]).objective, name
        assert (config.data.source, config.environment.target) == (task, environment)
        assert config.rewards.kind == ("environment" if environment else "exact")
        for section in ("sampling", "training"):
            chosen = getattr(config, section).model_dump(mode="json")
            assert PROFILES[task][section].items() <= chosen.items(), name


@pytest.mark.parametrize("task", ["addition", "calculator", "scratchpad"])
def test_right_responses_and_their_end_fit_the_embedded_profile(task):
    works = [response for _, response in demonstrations(task, "train")]
    if TASKS[task].environment:  # what it answers is not counted
        works = [re.sub(r"(\?[^;]*;)[^;]*;", r"\1", work) for work in works]
    assert max(map(len, works)) + 1 <= 0.8 * PROFILES[task]["sampling"]["max_tokens"]


# The recipe.


def nats(model, task):
    """Mean −log π of a token of right responses to 200 held-out problems."""
    right = [(prompt, response) for prompt, response in demonstrations(task, "test")[:200]]
    tokens, target = _table(build_tokenizer(ALPHABETS[task]), right)
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    return float(functional.cross_entropy(logits[target >= 0], target[target >= 0]))


@pytest.mark.parametrize(
    "task",
    [
        "max-digits",
        *(pytest.param(task, marks=pytest.mark.slow) for task in RECIPES if task != "max-digits"),
    ],
)
def test_the_recipe_makes_the_policy_that_is_shipped(task):
    """To the bit on the processor that made it; others round differently in hundreds of steps."""
    shipped = AutoModelForCausalLM.from_pretrained(embedded_policy(task))
    made = trained_policy(task, RECIPES[task])
    shapes = [[parameter.shape for parameter in model.parameters()] for model in (shipped, made)]
    assert shapes[0] == shapes[1]
    assert nats(made, task) == pytest.approx(nats(shipped, task), rel=0.15)


def test_the_calculator_gives_a_demonstration_the_answers_that_it_has():
    problem = TASKS["calculator"].problems("train")[77]
    _, work = demonstration("calculator", problem)
    environment, texts, turn = Calculator(), iter(re.split("(?<=;)", work)), None
    environment.reset(problem)
    for text in texts:
        turn = environment.step([{"role": "assistant", "content": text}])
        assert turn.done or turn.observation == next(texts)
    assert turn.correct
    assert not environment.step([{"role": "assistant", "content": "#0"}]).correct
