"""The tools in the box: the calculator is exact, and Python runs under limits."""

from __future__ import annotations

import contextlib
import tempfile
import time

import pytest
from forked import alive, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

from rlobj.conversations import ToolError, box, calculator, python

# The calculator.


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37*46", "1702"),
        (" -(2 + 3) * 4 ", "-20"),
        ("2 ** 100", str(2**100)),
        ("2 ** -2", "0.25"),
        ("0.1 + 0.2", "0.3"),
        ("1_000 / 8", "125"),
        ("1 / 3", "0.333333333333333"),
        ("10 ** 30 / 3", "3.33333333333333e+29"),
        ("2 ** 0.5", "1.4142135623731"),
    ],
)
def test_the_calculator_computes(expression, value):
    assert calculator(expression) == value


NUMBERS = st.integers(0, 99).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda part: st.tuples(part, st.sampled_from(["+", "-", "*", "//", "%"]), part).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_integers_are_exact(expression):
    try:
        value = str(eval(expression))
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="error: division by zero"):
            calculator(expression)
    else:
        assert calculator(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 / (2 - 2)", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("1e99999999", "too large or too small"),
        ("(-2) ** 0.5", "a root of a negative number"),
        ("1" * 2000, "more than 1000 characters"),
        ("-" * 900 + "1", "expected numbers with"),
        *((text, "expected numbers with") for text in ("", "2 +", "2^3", "True", "'a' * 9", "1j")),
        ("__import__('os').getpid()", "expected numbers with"),
    ],
)
def test_what_the_calculator_cannot_compute_is_an_error_at_once(expression, message):
    start = time.process_time()
    with pytest.raises(ToolError, match=f"^error: .*{message}"):
        calculator(expression)
    assert time.process_time() - start < 1


@settings(max_examples=50)
@given(st.text("0123456789+-*/%(). eEx_'\"\\\n\0é", max_size=30))
def test_no_text_breaks_the_calculator(text):
    with contextlib.suppress(ToolError):
        assert isinstance(calculator(text), str)


# Python.


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("x = 3\nx * 2", "6"),
        ("print('é')\n'é'", "é\n'é'"),
        ("", ""),
        ("import sys; print('e', file=sys.stderr)", "e"),
        ("import sys; print('x'); sys.exit()", "x"),
        ("import os; os.listdir()", "[]"),
        ("open('m.py', 'w').write('y = 5')\nimport m\nm.y", "5"),
        ("from multiprocessing import Pool\ndef f(x): return x * x\nPool(2).map(f, [3])", "[9]"),
    ],
)
def test_python_returns_what_a_program_prints_and_its_last_value(code, output):
    assert python(code) == output


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('so far')\n1 / 0", "so far\nZeroDivisionError: division by zero"),
        ("input()", "EOFError: EOF when reading a line"),
        ("import sys; sys.exit('bad')", "bad"),
        ("import os; os._exit(3)", "error: the program ended with the exit status 3"),
        ("import ctypes; ctypes.string_at(0)", "error: the program ended with SIGSEGV"),
        ("x = 'x' * (2 << 30)", "MemoryError"),
        ("open('f', 'wb').write(b'x' * (1 << 27))", "OSError: [Errno 27] File too large"),
    ],
)
def test_a_program_that_fails_is_an_error_with_its_last_line(code, message):
    with pytest.raises(ToolError) as caught:
        python(code)
    assert str(caught.value) == message


def test_a_program_sees_no_variables_and_leaves_no_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_KEY", "secret")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    printed = python("import os\nopen('left', 'w').write('x')\nprint(os.getcwd(), *os.environ)")
    assert printed.startswith(str(tmp_path))
    assert "SECRET_KEY" not in printed
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_a_program_are_equal():
    code = "import random\nprint(random.random(), {'a', 'b', 'c', 'd'})"
    assert python(code) == python(code)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("while True: pass", "did not end within 0.7 seconds"),
        (
            "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(60)\n"
            "time.sleep(60)",
            "started more than 64 processes",
        ),
    ],
)
def test_a_program_that_reaches_a_limit_is_ended(code, problem, monkeypatch):
    monkeypatch.setattr(box, "deadline", 0.7 if "within" in problem else 60)
    with pytest.raises(ToolError, match=f"error: the program {problem}$"):
        python(code)


def test_what_a_program_started_ends_with_it():
    code = "import os, time\nif (child := os.fork()) == 0: time.sleep(60)\nchild"
    child = int(python(code))
    wait_until(lambda: not alive(child), 60)
