"""The embedded default: tasks, tokenizer, policy, warm start, cache, profiles."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest
import torch
from forked import Forked
from hypothesis import given
from hypothesis import strategies as st
from runs import finish
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlobj.base.errors import RunError
from rlobj.conversations.opening import Calculator
from rlobj.data import DataConfig, load_problems
from rlobj.data.tasks import TASKS
from rlobj.models.embedded import (
    CALCULATOR_ALPHABET,
    RECIPES,
    SCRATCHPAD_ALPHABET,
    WarmStart,
    _noisy,
    _table,
    build_policy,
    build_tokenizer,
    embedded_policy,
    warm_start,
)
from rlobj.settings.building import build_config
from rlobj.settings.presets import load_preset, preset_names
from rlobj.settings.profiles import PROFILES


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def short(monkeypatch):
    """`addition` with a supervised run of two steps."""
    monkeypatch.setitem(RECIPES, "addition", WarmStart(steps=2, batch_size=8))


def trained(tokenizer, recipe, *, seed=0, progress=None):
    policy = build_policy(0)
    pairs = TASKS["addition"].demonstrations()
    warm_start(policy, tokenizer, pairs, recipe, seed=seed, progress=progress)
    return policy


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
        ("calculator-sum", 6561, 1317, None),
    ],
)
def test_no_test_problem_is_a_reordered_training_problem(name, total, test, answer):
    families = {}
    for split in ("train", "test"):
        problems = TASKS[name].problems(split)
        numbers = [[*map(int, re.findall("[0-9]+", problem.prompt))] for problem in problems]
        families[split] = [tuple(sorted(each)) for each in numbers]
        for problem, operands in zip(problems, numbers, strict=True):
            assert answer is None or int(problem.answer) == answer(operands)
    assert not set(families["train"]) & set(families["test"])
    assert len(families["train"]) + len(families["test"]) == total
    assert len(families["test"]) == test


def test_the_split_is_the_same_on_every_machine():
    first = [problem.prompt for problem in TASKS["addition"].problems("test")[:4]]
    assert first == ["2+5+0=", "1+6+2=", "2+2+5=", "0+7+0="]
    with pytest.raises(ValueError, match="splits train and test, not 'validation'"):
        load_problems(DataConfig(source="addition", split="validation"), "train")


@given(st.text(alphabet=SCRATCHPAD_ALPHABET, min_size=1))
def test_decoding_restores_text_over_the_alphabet(text):
    tokenizer = build_tokenizer(SCRATCHPAD_ALPHABET)
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_saved_folder_loads_as_a_transformers_model(tokenizer, short, tmp_path):
    folder = embedded_policy("addition", cache_dir=tmp_path)
    loaded, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder),
    )
    assert loaded("12+3=").input_ids == tokenizer("12+3=").input_ids
    assert (loaded.eos_token_id, loaded.pad_token_id) == (2, 0)
    assert model.config.eos_token_id == loaded.eos_token_id
    assert same_weights(model, trained(tokenizer, RECIPES["addition"]))


def test_a_policy_depends_only_on_its_seed():
    torch.manual_seed(1)
    first = build_policy(3)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))  # building it drew nothing
    torch.manual_seed(2)
    assert same_weights(first, build_policy(3))
    assert not same_weights(first, build_policy(4))


def test_warm_start_is_the_same_to_the_bit_on_any_number_of_threads(tokenizer):
    recipe = WarmStart(steps=3)
    first = trained(tokenizer, recipe)
    torch.manual_seed(7)
    torch.set_num_threads(2)
    try:
        second = trained(tokenizer, recipe)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert same_weights(first, second)
    assert not same_weights(first, trained(tokenizer, recipe, seed=1))


def test_warm_start_reports_each_step_and_the_loss_falls(tokenizer):
    heard = []
    trained(tokenizer, WarmStart(steps=40), progress=lambda *what: heard.append(what))
    assert [(done, steps) for done, steps, _ in heard] == [(n, 40) for n in range(1, 41)]
    losses = [loss for _, _, loss in heard]
    assert losses[-1] < 0.75 * losses[0]


def test_a_policy_is_made_once_and_other_recipes_and_seeds_have_other_folders(
    short, tmp_path, monkeypatch
):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embedded_policy("addition", cache_dir=tmp_path, progress=interrupt)
    assert list(tmp_path.iterdir()) == []
    heard = []
    for _ in range(2):
        first = embedded_policy("addition", cache_dir=tmp_path, progress=lambda *_: heard.append(1))
        assert list(tmp_path.iterdir()) == [first]  # nothing left over
    assert len(heard) == 2  # the two steps of the first call
    other = embedded_policy("addition", cache_dir=tmp_path, seed=1)
    monkeypatch.setitem(RECIPES, "addition", WarmStart(steps=2, batch_size=9))
    assert len({first, other, embedded_policy("addition", cache_dir=tmp_path)}) == 3


def test_a_folder_that_cannot_be_written_is_a_run_error(short, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="XDG_CACHE_HOME"):
        embedded_policy("addition", cache_dir=tmp_path / "file")


@pytest.mark.parametrize("task", list(PROFILES))
def test_a_profile_replaces_the_scale_of_every_preset_and_keeps_its_objective(task):
    assert task in RECIPES
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


@pytest.mark.parametrize("task", sorted({*PROFILES} - {"max-digits"}))
def test_right_responses_and_their_end_fit_the_embedded_profile(task):
    works = [response for _, response in TASKS[task].demonstrations()]
    if TASKS[task].environment:  # what it answers is not counted
        works = [re.sub(r"(\?[^;]*;)[^;]*;", r"\1", work) for work in works]
    assert max(map(len, works)) + 1 <= 0.8 * PROFILES[task]["sampling"]["max_tokens"]


@pytest.mark.parametrize("task", ["calculator", "calculator-sum"])
def test_the_calculator_gives_a_demonstration_the_answers_that_it_has(task):
    problem = TASKS[task].problems("train")[77]
    _, work = TASKS[task].demonstrations()[77]
    environment, texts, turn = Calculator(), iter(re.split("(?<=;)", work)), None
    environment.reset(problem)
    for text in texts:
        turn = environment.step([{"role": "assistant", "content": text}])
        assert turn.done or turn.observation == next(texts)
    assert turn.correct
    assert not environment.step([{"role": "assistant", "content": "#0"}]).correct


def test_what_the_environment_says_is_read_and_not_learned():
    tokenizer = build_tokenizer(CALCULATOR_ALPHABET)
    [tokens], [target] = _table(tokenizer, [["1*2=", "?1*2;", "2;", "#2"]])
    assert tokenizer.decode(tokens) == "1*2=?1*2;2;#2"
    texts = [tokenizer.decode([token]) if token >= 0 else "." for token in target.tolist()]
    assert "".join(texts) == "...?1*2;..#2<eos>"


def test_the_noise_of_a_scratchpad_has_the_documented_rates_and_keeps_the_rest():
    recipe, draw = RECIPES["scratchpad"], random.Random(0)
    right = "3+4=7;7+8=15;15+5=20#20"
    texts = [_noisy(right, recipe, draw) for _ in range(4000)]
    letters = sum(character.isalpha() for text in texts for character in text)
    assert letters / (4000 * len(right)) == pytest.approx(0.004, rel=0.2)
    plain = ["".join(c for c in text if not c.isalpha()) for text in texts]
    digits = [i for i, character in enumerate(right) if character.isdigit()]
    wrong = sum(text[i] != right[i] for text in plain for i in digits)
    assert wrong / (4000 * len(digits)) == pytest.approx(0.03, rel=0.1)
    for i, character in enumerate(right):
        found = {text[i] for text in plain}
        assert found == (set("0123456789") if i in digits else {character})


@pytest.mark.slow
def test_two_processes_that_start_together_share_one_folder(tmp_path):
    code = (
        "import sys; from rlobj.models.embedded import RECIPES, WarmStart, embedded_policy;"
        "RECIPES['addition'] = WarmStart(steps=20);"
        "print(embedded_policy('addition', cache_dir=sys.argv[1]))"
    )
    logs, cache = [tmp_path / f"{i}.log" for i in range(2)], tmp_path / "cache"
    running = []
    for log in logs:
        with log.open("w") as file:
            running.append(Forked(["-c", code, cache], file))
    first, second = map(finish, running, logs)
    assert first == second
    assert list(cache.iterdir()) == [Path(first.strip())]
