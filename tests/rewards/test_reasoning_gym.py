"""reasoning-gym: problems from seeds, graded by the scorers of their datasets."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError, DataError, MissingExtra
from rlobj.data import DataConfig, Problem, format_prompt, load_problems
from rlobj.data.gym_worker import _EVALUATES, harmless
from rlobj.rewards import Graded, Reward
from rlobj.settings.building import compose
from rlobj.settings.layers import layers_of


def load(name: str, split: Any = "train", **gym: Any) -> list[Problem]:
    return load_problems(DataConfig(source=f"reasoning-gym:{name}", gym=gym), split)


def grade(response: str, problem: Problem) -> Graded:
    with Reward.build("reasoning_gym").open() as grader:
        return grader.score([response], [problem])[0]


def test_missing_package_is_an_error_that_names_the_extra(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setattr("rlobj.data.gym.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[reasoning-gym\]'"):
        load("countdown")
    with pytest.raises(MissingExtra, match=r"needs the package 'reasoning-gym'"):
        layers_of("grpo", [("--data", {"data": {"source": "reasoning-gym:countdwn"}})])


@pytest.mark.parametrize("model", [{}, {"model": {"name": "embedded"}}])
def test_the_embedded_policy_is_refused_before_problems_are_made(
    monkeypatch: Any, model: dict[str, Any]
) -> None:
    monkeypatch.setattr("rlobj.data.gym.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match="needs a model: model="):
        layers_of("grpo", [("x", {"data": {"source": "reasoning-gym:countdown"}, **model})])


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("(25 + 7) * 4 - 3", False),
        ("x**3/3 + sin(2*x) - 0.5*log(x) + C", False),
        ("['A', 'B', 'C']", False),
        ("[[0, 1], [1, 0]]", False),
        ("_ _ Q _\nQ _ _ _", False),
        ("__import__('os').system('true')", True),
        ("exec ('x')", True),
        ("sin('ev' 'al' '(1)')", True),
        ("(exec)(1)", True),
        ("(exec #+\n('1'))", True),
        ("exec\\\n('1')", True),
        ("x.subs", True),
        ("(lambda: 1)()", True),
        ("５!", True),
    ],
)
def test_only_literals_and_formulas_are_evaluated(answer: str, refused: bool) -> None:
    assert harmless(answer) != refused


pytestmark = pytest.mark.filterwarnings("ignore")


class TestInstalled:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")

    def test_problems_are_reproducible_and_their_number_is_a_setting(
        self, monkeypatch: Any
    ) -> None:
        first = load("ransom_note", size=5)  # depends on the hash seed
        monkeypatch.setenv("PYTHONHASHSEED", "3")
        assert load("ransom_note", size=5) == first != load("ransom_note", size=5, seed=1)
        problems = load("countdown", size=20, max_numbers=4)
        assert len(problems) == 20
        numbers = [problem.extra["reasoning_gym"]["metadata"]["numbers"] for problem in problems]
        assert {len(each) for each in numbers} == {4}

    def test_no_test_problem_is_a_training_problem(self) -> None:
        trained = {problem.prompt for problem in load("coin_flip", size=200)}
        tested = {problem.prompt for problem in load("coin_flip", "test", size=200)}
        assert tested
        assert not trained & tested

    def test_the_right_answer_scores_1_and_a_wrong_one_what_the_dataset_says(self) -> None:
        problem = load("countdown", size=1)[0]
        right = grade(f"So <answer>1</answer>? No: <answer> {problem.answer} </answer>", problem)
        assert (right.reward, right.correct, right.answer) == (1.0, True, problem.answer)
        wrong = grade("<answer>1 + 1</answer>", problem)
        assert (wrong.reward, wrong.correct) == (0.05, False)
        absent = grade(problem.answer, problem)
        assert (absent.reward, absent.reason, absent.answer) == (0.01, "no answer", None)

    @pytest.mark.slow
    def test_datasets_of_other_kinds_are_graded_by_their_scorers(self) -> None:
        import reasoning_gym

        problems, texts, expected = [], [], []
        for name in ("knights_knaves", "arc_agi", "puzzle24", "rush_hour"):
            entry = reasoning_gym.create_dataset(name, size=3, seed=0)
            for problem in load(name, size=3):
                same = [entry[i] for i in range(3) if entry[i]["question"] == problem.prompt]
                answer = problem.answer or "F+2"
                problems.append(problem)
                texts.append(f"<answer>{answer}</answer>")
                expected.append(entry.score_answer(answer, same[0]))
        with Reward.build("reasoning_gym").open() as grader:
            assert [each.reward for each in grader.score(texts, problems)] == expected

    @pytest.mark.slow
    def test_no_scorer_runs_code_of_an_answer(self, tmp_path: Path) -> None:
        from reasoning_gym.factory import DATASETS

        canary = tmp_path / "canary"
        attack = f"<answer>__import__('pathlib').Path({str(canary)!r}).touch()</answer>"
        evaluating = [
            name
            for name, (kind, _) in sorted(DATASETS.items())
            if _EVALUATES.search(Path(sys.modules[kind.__module__].__file__).read_text())  # type: ignore[arg-type]
        ]
        named = {"countdown", "n_queens", "simple_integration"}
        assert named <= set(evaluating)
        evaluating = sorted(named | set(evaluating[::8]))  # each is made in a process of its own
        problems = [load(name, size=1)[0] for name in evaluating]
        with Reward.build("reasoning_gym").open() as grader:
            grades = grader.score([attack] * len(problems), problems)
        assert not canary.exists()
        refused = {
            name for name, each in zip(evaluating, grades, strict=True) if "refused" in each.reason
        }
        assert named <= refused

    @pytest.mark.slow
    def test_an_answer_that_takes_too_long_has_the_score_0(self) -> None:
        problem = load("countdown", size=1)[0]
        with Reward.build({"kind": "reasoning_gym", "deadline": 2}).open() as grader:
            grades = grader.score(["<answer>9**9**9**9</answer>", "no"], [problem, problem])
        assert (grades[0].reward, grades[0].correct) == (0.0, False)
        assert grades[0].reason in ("timeout", "memory")
        assert grades[1].reward == 0.01

    @pytest.mark.parametrize(
        ("name", "gym", "message"),
        [
            ("countdwn", {}, "Dataset 'countdwn' not registered"),
            ("countdown", {"max_number": 4}, "unexpected keyword argument 'max_number'"),
        ],
    )
    def test_unknown_names_and_values_are_errors(
        self, name: str, gym: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(DataError, match=message):
            load(name, size=1, **gym)

    def test_a_run_uses_the_scorer_and_asks_for_the_tags(self) -> None:
        data = {"source": "reasoning-gym:chain_sum", "gym": {"size": 4}}
        config = compose("dapo", [("here", {"model": {"name": "M"}, "data": data})])
        assert config.rewards.kind == "reasoning_gym"
        problem = load_problems(config.data, "test")[0]
        prompt = format_prompt(config.data.template_for_tests, problem)
        assert prompt.startswith(problem.prompt)
        assert "<answer>" in prompt

    def test_a_problem_of_another_source_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="reasoning-gym alone"):
            grade("", replace(load("countdown", size=1)[0], extra={}))
