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


def test_points_are_the_same_in_every_process():
    code = "from rlobj.answers.numeric import generator; print(generator('x').random())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert float(other.stdout) == generator("x").random()
