import os
import subprocess
import sys
from fractions import Fraction

from rlobj.answers.numeric import generator, points

X = ("name", "x")
SHIFTED = ("+", X, Fraction(1))


def test_points_depend_on_both_expressions():
    first = list(points(["x"], X, SHIFTED))
    assert first == list(points(["x"], X, SHIFTED))
    assert first != list(points(["x"], X, X))
    assert first != list(points(["x"], SHIFTED, X))


def test_points_cannot_be_known_before_the_process_starts():
    code = "from rlobj.answers.numeric import generator; print(generator('x').random())"
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert float(other.stdout) != generator("x").random()


def test_points_have_small_and_large_and_negative_values():
    values = [abs(point["x"]) for point, _ in points(["x"], X, SHIFTED)]
    assert min(values) < Fraction(1, 10**4)
    assert max(values) > 10**5
    assert any(point["x"] < 0 for point, _ in points(["x"], X, SHIFTED))


def test_letters_are_integers_only_if_the_gold_is_about_integers():
    floor = ("floor", ("name", "n"))
    assert all(point["n"].denominator == 1 for point, _ in points(["n"], floor, floor))
    values = [point["n"] for point, _ in points(["n"], floor, ("name", "n"))]
    assert any(value.denominator > 1 for value in values)
