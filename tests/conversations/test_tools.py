"""Tools in worker processes and in this one: whatever they do, a call gets an answer."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import alive, wait_until

from rlobj.base.errors import ConfigError
from rlobj.base.targets import importing
from rlobj.conversations import EnvironmentSettings, ToolPool

FILE = Path(__file__).with_name("some_tools.py")
TOOLS = tuple(f"{FILE}:{name}" for name in ("add", "fail", "values", "draw", "wait"))


def settings(*tools, **limits):
    return EnvironmentSettings(tools=tools or TOOLS, **{"deadline": 1.0, "workers": 2, **limits})


def called(pool, *calls, **more) -> list[Any]:
    """What became of calls that were made at the same time."""

    async def all_of_them():
        return await asyncio.gather(*(pool.call(*call, **more) for call in calls))

    answers = asyncio.run(all_of_them())
    return [SimpleNamespace(text=text, **vars(use)) for text, use in answers]


@pytest.fixture(scope="module")
def deadline() -> float:
    """Many times what a call takes on this machine now."""
    with ToolPool(settings(deadline=60)) as opened:
        called(opened, ("add", {"a": 1}))  # starts the process
        [result] = called(opened, ("add", {"a": 1}))
    return max(1.0, round(50 * result.seconds, 2))


@pytest.fixture(scope="module")
def pool(deadline):
    with ToolPool(settings(deadline=deadline)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("raise", "exception", "error: KeyError: 'gone xxx"),
        ("own", "error", "no such city"),
        ("none", "exception", "returned NoneType; expected a text, number, list or dict"),
        ("long", "flood", "aaa\n[1,995,904 characters were left out]\nzzz"),
        ("surrogate", "", "?!"),
    ],
)
def test_a_tool_that_fails_is_an_answer_and_the_next_calls_succeed(pool, how, error, text):
    [result] = called(pool, ("fail", {"how": how}))
    kind, _, place = result.error.partition(": ")
    assert (kind, text in result.text) == (error, True), result
    assert (f"\n  at {FILE}, line " in place) == (how == "raise")
    assert len(result.text) < (400 if how == "raise" else 4096 + 100)
    assert str(FILE) not in result.text
    after = called(pool, *[("add", {"a": i, "b": 1}) for i in range(3)])
    assert [(each.text, each.error) for each in after] == [("1", ""), ("2", ""), ("3", "")]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("values", {"kind": "list"}), '[1, {"a": null}]'),
        (("values", {"kind": "number"}), "0.5"),
        (("values", {"kind": "text"}), "é"),
        (("wait", {"seconds": 0.01}), "waited"),
    ],
)
def test_results_are_texts(pool, call, text):
    [result] = called(pool, call)
    assert (result.text, result.error) == (text, "")


def test_a_call_that_cannot_be_made_is_an_answer(pool):
    wrong, data = called(pool, ("add", {"c": 1}), ("add", {"a": {1}}))
    assert [each.error.partition(":")[0] for each in (wrong, data)] == ["exception", "error"]
    assert "unexpected keyword argument 'c'" in wrong.text
    assert "set is not JSON" in data.text


def test_calls_do_not_wait_for_a_slow_one_and_are_answered_in_their_order(pool):
    async def timed(call):
        text, _ = await pool.call(*call)
        return text, time.monotonic()

    async def together():
        quick = [("add", {"a": i}) for i in range(100)]
        return await asyncio.gather(*map(timed, [("fail", {"how": "sleep"}), *quick]))

    [(_, slow), *others] = asyncio.run(together())
    assert [text for text, _ in others] == [str(i) for i in range(100)]
    assert max(end for _, end in others) < slow


def test_the_wait_for_a_free_process_does_not_count():
    begun = time.monotonic()
    with ToolPool(settings(workers=1, deadline=60)) as pool:
        results = called(pool, *[("wait", {"seconds": 0.1})] * 4)
    assert [each.error for each in results] == [""] * 4
    assert sum(each.seconds for each in results) <= time.monotonic() - begun


def test_random_numbers_depend_on_the_seed_and_on_nothing_else(pool):
    [first], [second] = called(pool, ("draw", {}), seed=1), called(pool, ("draw", {}), seed=2)
    with ToolPool(settings()) as other:
        [again] = called(other, ("draw", {}), seed=1)
    assert first.text == again.text != second.text


PROGRAM = """
import asyncio, sys
from rlobj.conversations import EnvironmentSettings, ToolPool
code = f"import os, time\\nprint(os.getpid(), file=open({sys.argv[1]!r}, 'w'))\\ntime.sleep(100)"
with ToolPool(EnvironmentSettings(tools=("python",))) as pool:
    asyncio.run(pool.call("python", {"code": code}))
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_no_code_of_the_policy_outlives_an_interrupted_program(number, tmp_path):
    note = tmp_path / "note"
    words = [sys.executable, "-c", PROGRAM, str(note)]
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=variables) as process:
        wait_until(lambda: note.exists() and note.read_text().strip(), 60)
        assert alive(int(note.read_text()))
        process.send_signal(number)
    wait_until(lambda: not alive(int(note.read_text())), 60)
    assert number == signal.SIGKILL or not [*tmp_path.glob("rlobj-*")]


def test_no_process_outlives_the_pool(tmp_path):
    file = tmp_path / "tool.py"
    file.write_text("import os\ndef process(): return os.getpid()\n")
    with ToolPool(settings(f"{file}:process")) as pool:
        [first], [second] = called(pool, ("process", {})), called(pool, ("process", {}))
        assert first.text == second.text
        assert alive(int(first.text))
    assert not alive(int(first.text))
    [late] = called(pool, ("process", {}))
    assert late.error == "error"
    assert "the worker processes are closed" in late.text


# Functions of this process.


def doubled(number: float) -> float:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


# Schemas, and what is found before a run.


def test_schemas_come_in_the_order_of_the_tools_and_the_file_is_not_imported_here():
    tools = (TOOLS[0], "calculator", TOOLS[4], "python")
    with ToolPool(settings(), [*tools, doubled]) as pool:
        schemas = [each["function"] for each in pool.schemas()]
    names = [each["name"] for each in schemas]
    assert names == ["add", "calculator", "wait", "python", "doubled"]
    assert schemas[0] == {
        "name": "add",
        "description": "Add two integers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The first one."},
                "b": {"type": "integer", "description": "The second one."},
            },
            "required": ["a"],
        },
        "return": {"type": "integer"},
    }
    assert list(schemas[1]["parameters"]["properties"]) == ["expression"]
    assert list(schemas[3]["parameters"]["properties"]) == ["code"]
    assert "_rlobj_target_some_tools" not in sys.modules


def no_docstring(a: int) -> int:
    return a


def no_type(a):
    """Return it.

    Args:
        a: What is returned.
    """
    return a


def no_description(a: int) -> int:
    """Return it."""
    return a


ARGUMENTS = """
    It.

    Args:
        a: What is returned.
        more: What else.
    """


def described(function: Any) -> Any:
    function.__doc__ = ARGUMENTS
    return function


@described
def positions(a: int, /, more: int = 0) -> int:
    return a


@functools.wraps(described(no_description))
def no_arguments() -> int:
    return 0


no_description.__doc__ = "Return it."
no_arguments.__name__ = "no_arguments"


class Tools:
    @described
    def method(self, a: int) -> int:
        return a


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (positions, "'a' parameter is positional only"),
        (no_arguments, "got an unexpected keyword argument 'a'"),
        (Tools.method, "missing a required argument: 'self'"),
        (math.sqrt, "Argument x is missing a type hint"),
        (no_docstring, "it has no docstring"),
        (no_type, "Argument a is missing a type hint"),
        (no_description, "the docstring has no description for the argument 'a'"),
    ],
)
def test_a_tool_without_a_schema_is_named_and_a_right_one_is_shown(function, why):
    with pytest.raises(ConfigError, match=f"tool '{function.__name__}' has no schema: ") as caught:
        ToolPool(EnvironmentSettings(), [function]).schemas()
    assert why in str(caught.value)
    code = getattr(inspect.unwrap(function), "__code__", None)
    assert code is None or f"{__file__}, line {code.co_firstlineno}" in str(caught.value)


@described
def keywords(a: int, *, more: int = 1) -> int:
    return a + more


def test_methods_and_arguments_by_keyword_are_tools():
    pool = ToolPool(EnvironmentSettings(), [keywords, Tools().method])
    assert [each["function"]["parameters"]["required"] for each in pool.schemas()] == [["a"]] * 2
    results = called(pool, ("keywords", {"a": 1}), ("method", {"a": 5}))
    assert [each.text for each in results] == ["2", "5"]


def test_a_tool_in_a_file_that_cannot_be_called_by_names_is_refused():
    with (
        ToolPool(settings(f"{FILE}:by_position")) as pool,
        pytest.raises(ConfigError, match="tool 'by_position' has no schema: 'a' parameter is"),
    ):
        pool.schemas()


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (("calculater",), "a tool is 'calculater'. Did you mean 'calculator'?"),
        (("calculator", "mine:calculator"), "two tools have the name 'calculator'"),
    ],
)
def test_names_are_checked(tools, message):
    with pytest.raises(ConfigError) as caught:
        ToolPool(EnvironmentSettings(tools=tools))
    assert message in str(caught.value)


def test_code_that_a_file_names_is_not_imported_without_trust():
    with importing(()), pytest.raises(ConfigError, match="trust=True"):
        ToolPool(settings())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere", "tool 'f': .*No module named 'nowhere'"),
        (
            "import os; os._exit(5)",
            "import of the tools f: ended its process with the exit status 5",
        ),
        ("x = 'x' * (8 << 30)", "tool 'f': .*MemoryError"),
    ],
)
def test_a_tool_that_cannot_be_imported_is_found_before_the_run(text, message, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with ToolPool(settings(f"{file}:f")) as pool, pytest.raises(ConfigError, match=message):
        pool.schemas()
