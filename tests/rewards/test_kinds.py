import math
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

from rlobj.base.errors import ConfigError
from rlobj.base.validation import Model
from rlobj.conversations.settings import require_known
from rlobj.data import DataConfig, Problem, load_problems
from rlobj.integrations.rewards import accuracy_reward
from rlobj.objectives.advantages import GroupNormalized
from rlobj.objectives.surrogates import Surrogate
from rlobj.rewards import Custom, Exact, Math, Overlong, RewardConfig, overlong_penalty
from rlobj.rewards.kinds import Reward
from rlobj.settings.run_config import RunConfig


class Run(Model):
    rewards: RewardConfig = Math()


def problem(answer, **extra):
    return Problem(id="p7", prompt="?", answer=answer, extra=extra)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("math", Math()),
        ("exact", Exact()),
        ({"kind": "math", "deadline": 2, "workers": 3}, Math(deadline=2, workers=3)),
        ({"overlong": {"cache": 0.2}}, Math(overlong=Overlong(cache=0.2))),
        ({"kind": "custom", "target": "a.b:c"}, Custom(target="a.b:c")),
        (Exact(), Exact()),
    ],
)
def test_reward_is_built_from_a_kind_a_mapping_or_an_instance(given, expected):
    assert Run(rewards=given).rewards == expected
    assert TypeAdapter(RewardConfig).validate_python(given) == expected


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("mth", "Did you mean 'math'"),
        ({"kind": "exat"}, "Did you mean 'exact'"),
        ({"kind": "math", "dedline": 3}, "Did you mean 'deadline'"),
        ({"kind": "math", "overlong": {"cach": 0.2}}, "Did you mean 'cache'"),
        ("custom", "target: is required"),
    ],
)
def test_error_names_the_nearest_setting(given, advice):
    with pytest.raises(ConfigError, match=advice):
        Run(rewards=given)


def test_math_grades_with_undecided_as_nan():
    problems = [problem("1024"), problem("1024"), problem(r"\Re(5)"), problem("5")]
    responses = [r"\boxed{2^{10}}", "1024", r"\boxed{5}", r"\boxed{6}"]
    with Math(deadline=1).open() as grader:
        graded = grader.score(responses, problems)
    assert graded[2].reason == "gold not readable"
    assert [grade.correct for grade in graded] == [True, False, None, False]
    assert [grade.reward for grade in graded[:2]] == [1.0, 0.0]
    assert math.isnan(graded[2].reward)
    assert [grade.answer for grade in graded[:2]] == ["2^{10}", None]


UNREADABLE = {
    r"6\ldots": "unreadable",
    r"\Re 6": "unreadable",
    r"\det(6)": "unreadable",
    r"6 \oplus 1": "unreadable",
    r"6 \bmod\ ": "unreadable",
    r"\begin{vmatrix} 6 \end{vmatrix}": "unreadable",
    r"6 \star 1": "unreadable",
    r"\Pr(6)": "unreadable",
    r"\left(6\right": "unreadable",
    "6" + "+0" * 300: "too_large",
    "9^{9^{9^{9}}} - 9^{9^{9^{9}}} + 6": "not_settled",
    r"\prod_{k=1}^{99999} \frac{6}{k}": "not_settled",
    r"6 + \Gamma(10^{9}) - \Gamma(10^{9})": "not_settled",
    r"\int_0^1 \int_0^x e^{-x^2 y^3} \sin(\cos(\tan(xy)))\,dy\,dx": "timeout",
}
"""Answers of which each beat a wrong one while it was undecided, and the cause that is named."""


def test_an_answer_that_cannot_be_compared_has_the_reward_and_advantage_of_a_wrong_one():
    answers = [*UNREADABLE, "7", "6", "6"]
    with Math(deadline=1, workers=2).open() as grader:
        grades = grader.score([rf"\boxed{{{a}}}" for a in answers], [problem("6")] * len(answers))
    found = dict(zip(answers, [grade.cause for grade in grades], strict=False))
    assert found == UNREADABLE | {"7": None, "6": None}
    assert [grade.reward for grade in grades] == [0.0] * (len(answers) - 2) + [1.0, 1.0]
    rewards = torch.tensor([grade.reward for grade in grades], dtype=torch.float64)
    one_group = torch.zeros(len(answers), dtype=torch.int64)
    advantages = GroupNormalized()(rewards, one_group, torch.ones(len(answers)))
    assert advantages[:-3].tolist() == [advantages[-3].item()] * len(UNREADABLE)
    assert advantages[-3] < 0 < advantages[-1]


def test_exact_compares_text_without_surrounding_blanks():
    with Exact().open() as grader:
        graded = grader.score([" 12 ", "12.0", ""], [problem("12")] * 3)
    assert [grade.reward for grade in graded] == [1.0, 0.0, 0.0]
    assert [grade.correct for grade in graded] == [True, False, False]


def test_exact_after_a_mark_compares_only_the_text_behind_the_last_one():
    with Exact(after="#").open() as grader:
        graded = grader.score(["1+2=3#12", "#3# 12 ", "12", "#12#3"], [problem("12")] * 4)
    assert [grade.reward for grade in graded] == [1.0, 1.0, 0.0, 0.0]
    assert [grade.answer for grade in graded] == ["12", "12", None, "3"]
    assert graded[2].reason == "no #"


def test_custom_function_of_a_module():
    with Custom(target="operator:contains").open() as grader:
        graded = grader.score(["cat", "dog"], [problem("a")] * 2)
    assert [grade.reward for grade in graded] == [1, 0]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module_here:score", "No module named"),
        ("missing.py:score", "there is no file"),
        ("math:sqr", "Did you mean 'sqrt'"),
        ("math", "target is 'math'"),
        ("math:pi", "is not a function"),
    ],
)
def test_error_explains_a_target_that_cannot_be_imported(target, message):
    with pytest.raises(ConfigError, match=message):
        Custom(target=target).open()


@pytest.mark.parametrize("kind", ["math", "exact"])
def test_any_of_several_gold_answers_is_right_as_in_the_reward_of_trl(kind, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"problem": "x^2=4?", "answer": ["2", "-2"]}\n')
    [one] = load_problems(DataConfig(source=str(file), test_fraction=0), "train")
    assert (one.answer, one.extra["alternatives"]) == ("2", ["2", "-2"])
    texts = [r"\boxed{-2}", r"\boxed{3}"] if kind == "math" else ["-2", "3"]
    with Reward.build(kind).open() as grader:
        assert [grade.reward for grade in grader.score(texts, [one] * 2)] == [1.0, 0.0]
    if kind == "math":
        assert accuracy_reward(texts, answer=[["2", "-2"]] * 2) == [1.0, 0.0]


FILE = """
raise RuntimeError("nobody runs this")
def good(response, answer, **columns): return 1.0
class Losses: pass
async def asks(response, answer, **columns): return 1.0
def _helper(): pass
"""


@pytest.mark.parametrize("given", ["mine.py", "mine.py:", {"kind": "mine.py"}])
def test_a_file_without_a_function_is_answered_by_its_functions(given, tmp_path, monkeypatch):
    """The file is parsed and not executed; a file of another family names its classes."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    with pytest.raises(ConfigError, match=r"Name the function: mine.py:good, mine.py:asks"):
        Reward.build(given)
    with pytest.raises(ConfigError, match=r"Name the class: mine.py:Losses"):
        Surrogate.build("mine.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no file 'mine.py'"),
        ("x = 1", "mine.py defines no public function"),
        ("def f(:", "mine.py cannot be read as Python: invalid syntax"),
        ("x = " + "(" * 9_999, "mine.py cannot be read as Python: too many nested"),
    ],
)
def test_a_file_that_has_no_function_is_said_to_have_none(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("mine.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Reward.build("mine.py")
    with pytest.raises(ConfigError, match=message):
        RunConfig(columns={"outcome": "mine.py"})
    with pytest.raises(ConfigError, match=message):
        require_known("a tool", "mine.py", [])


def test_overlong_penalty_by_hand():
    # L_max 20480, L_c 4096, the paper's: free up to 16384, then 1/4096 a token, -1 past the limit.
    lengths = torch.tensor([0, 16384, 16385, 18432, 20480, 30000])
    expected = [0.0, 0.0, -1 / 4096, -0.5, -1.0, -1.0]
    assert overlong_penalty(lengths, 20480, 4096).tolist() == expected


def test_overlong_penalty_is_added_and_undecided_rewards_stay_nan():
    shaped = Overlong(cache=0.2, penalty=0.5).shape(
        torch.tensor([1.0, 0.0, math.nan]), torch.tensor([90, 100, 100]), 100
    )
    assert shaped[:2].tolist() == [0.75, -0.5]
    assert shaped[2].isnan()


def test_any_alternative_gold_is_right():
    either = problem("x+1", alternatives=["x+1", "y^2"])
    with Math().open() as grader:
        graded = grader.score([r"\boxed{y^2}", r"\boxed{x+1}", r"\boxed{z}"], [either] * 3)
    assert [grade.correct for grade in graded] == [True, True, False]
