"""Environments made of tools, and the objects of TRL's environment_factory."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from chats import chat_tokenizer

import rlobj
from rlobj.base.errors import ConfigError, RunError
from rlobj.conversations import (
    EnvironmentSettings,
    MethodEnvironment,
    ToolEnvironment,
    from_trl,
)
from rlobj.conversations.methods import made_environment
from rlobj.conversations.named import NamedEnvironments
from rlobj.conversations.opening import open_conversations
from rlobj.data import Chat, Problem
from rlobj.samplers import Response, SamplingSettings
from rlobj.samplers.response import ToolUse

PROBLEM = Problem("1", "Count to 3.", "3", {"start": 1})
SETTINGS = EnvironmentSettings(deadline=5)


def call(name: str, error: str = "", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({"error": error} if error else {})


def says(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    said = {"role": "assistant", "content": "..."}
    return [{"role": "user", "content": "hi"}, {**said, "tool_calls": [*calls]} if calls else said]


def run(work: Any) -> Any:
    return asyncio.run(work)


def made_by_trl(factory: Any, *text: Any) -> Any:
    """What makes the environments of conversations."""
    return partial(made_environment, from_trl(factory), SETTINGS, *text)


def told(turn: Any) -> list[str]:
    assert all(each["role"] == "tool" for each in turn.observation)
    return [each["content"] for each in turn.observation]


class Together:
    """Tools that return when as many calls as there are have begun, the later ones first."""

    def __init__(self, calls: int) -> None:
        self.all_begun = asyncio.Barrier(calls)

    async def call(self, name: str, arguments: Any, seed: int) -> tuple[str, ToolUse]:
        await self.all_begun.wait()
        await asyncio.sleep(arguments["seconds"])
        return f"{name} {arguments['seconds']}", ToolUse(name, "", arguments["seconds"])


def test_calls_are_made_at_once_and_answered_in_their_order():
    together: Any = Together(3)
    environment = ToolEnvironment(together)
    assert run(environment.reset(PROBLEM)) is None
    calls = [call("a", seconds=0.2), call("b", seconds=0.01), call("a", seconds=0.1)]
    turn = run(asyncio.wait_for(environment.step(says(*calls)), 60))
    assert told(turn) == ["a 0.2", "b 0.01", "a 0.1"]
    assert [each["name"] for each in turn.observation] == ["a", "b", "a"]
    assert [use.seconds for use in turn.uses] == [0.2, 0.01, 0.1]
    assert not turn.done


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first one.
        b: The second one.
    """
    return a + b


class Counter:
    """As the documentation of TRL writes environments."""

    rewards = 0

    def __init__(self) -> None:
        self.count = 0

    def reset(self, **columns: Any) -> str | None:
        self.count = columns["start"]
        self.target = int(columns["answer"])
        assert columns["prompt"][-1]["role"] == "user"
        return f" You are at {self.count}."

    def increment(self, step: int) -> str:
        """Increment the counter.

        Args:
            step: By how much.
        """
        if step < 0:
            raise ValueError("step must not be negative")
        self.count += step
        return f"Counter is now {self.count}"

    async def look(self) -> dict[str, int]:
        """Look at the counter."""
        await asyncio.sleep(0)
        return {"count": self.count}

    @property
    def broken(self) -> int:
        raise AssertionError("properties are not evaluated")

    def _hidden(self) -> None: ...

    def get_reward(self) -> float:
        Counter.rewards += 1
        return float(self.count == self.target)


CALLS = [call("increment", step=1), call("increment", step=-1), call("look")]


def test_an_object_of_trl_is_an_environment():
    environment: Any = made_by_trl(Counter, lambda problem: f"Q: {problem.prompt}")()
    schemas = environment.pool.schemas()
    assert [each["function"]["name"] for each in schemas] == ["increment", "look"]
    parameters = schemas[0]["function"]["parameters"]
    assert parameters["properties"]["step"]["type"] == "integer"
    before = Counter.rewards

    async def converse() -> None:
        opening = await environment.reset(PROBLEM)
        assert opening == [{"role": "user", "content": "Q: Count to 3. You are at 1."}]
        turn = await environment.step(says(*CALLS))
        assert told(turn) == [
            "Counter is now 2",
            "{'error': 'step must not be negative'}",
            "{'count': 2}",
        ]
        assert (turn.uses[0].error, turn.uses[2].error) == ("", "")
        where = f"exception: ValueError: step must not be negative\n  at {__file__}, line "
        assert turn.uses[1].error.startswith(where)
        await environment.step(says(call("increment", step=1)))
        assert Counter.rewards == before
        turn = await environment.step(says())
        assert turn.done
        assert turn.reward == 1.0

    run(converse())
    assert Counter.rewards == before + 1


def test_each_conversation_has_its_own_object():
    made: Any = made_by_trl(Counter)
    one, other = made(), made()
    run(one.reset(PROBLEM))
    run(one.step(says(call("increment", step=5))))
    assert vars(one.made) == {"count": 6, "target": 3}
    assert vars(other.made) == {"count": 0}


class Guess:
    """A tool that is called `step`, and no reward."""

    def reset(self, **columns: Any) -> None:
        self.tries = 0

    async def step(self, action: str) -> str:
        """Guess.

        Args:
            action: The guess.
        """
        self.tries += 1
        return action.upper()


class Odd:
    def reset(self, **columns: Any) -> int:
        return 3


def test_a_tool_may_be_called_step_and_a_reset_returns_a_text_or_none():
    environment = made_by_trl(Guess)()
    assert run(environment.reset(PROBLEM)) is None
    assert told(run(environment.step(says(call("step", action="a"))))) == ["A"]
    ended = run(environment.step(says()))
    assert (ended.done, ended.reward) == (True, 0.0)
    with pytest.raises(RunError, match="reset returned 3; expected None or a text"):
        run(made_by_trl(Odd)().reset(PROBLEM))


def test_an_environment_without_its_methods_is_refused():
    with pytest.raises(ConfigError, match=r"SimpleNamespace has no method reset$"):
        made_by_trl(SimpleNamespace)()
    with pytest.raises(ConfigError, match=r"Odd has no method step\. .*rlobj\.from_trl"):
        made_environment(Odd, SETTINGS)


NAMED = """
import rlobj
class Wrong:
    def reset(self, **columns): pass
    def act(self, action): return action
wrong = rlobj.from_trl(Wrong)
"""


def test_what_is_wrong_in_the_process_of_an_environment_is_an_error_of_the_settings(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(NAMED)
    with pytest.raises(ConfigError, match="tool 'act' has no schema"):
        NamedEnvironments(f"{file}:wrong", SETTINGS, str)


TOKENIZER = chat_tokenizer("qwen3")
ASKS = '<tool_call>\n{"name": "%s", "arguments": {%s}}\n</tool_call>'


class Script:
    """A sampler that writes these turns."""

    context = None

    def __init__(self, *turns: str) -> None:
        self.turns, self.read = iter(turns), list[str]()

    def stream(self, feed: Any, settings: Any, arrived: Any) -> None:
        while (requests := feed.take(wait=True)) is not None:
            for request in requests:
                self.read.append(TOKENIZER.decode(request.prompt))
                ids = TOKENIZER(next(self.turns) + "<|im_end|>")["input_ids"]
                text = TOKENIZER.decode(ids, skip_special_tokens=True)
                zeros = [0.0] * len(ids)
                arrived(request, Response(request.prompt, ids, zeros, text, "stop", 0))


def hold(turns: list[str], problem: Problem = PROBLEM, **opened: Any) -> tuple[Any, list[str]]:
    """One conversation, and what the policy reads before each turn."""
    sampler: Any = Script(*turns)
    settings = EnvironmentSettings(target="given" if "environment" in opened else None)
    with open_conversations(
        *(settings, sampler, TOKENIZER, Chat()),
        lambda problem: f"{problem.prompt} Count.",
        **opened,
    ) as conversations:
        sampling = SamplingSettings(max_tokens=2000)
        ((sample,),) = conversations.sample([problem], count=1, settings=sampling, seeds=[1])
    return sample, sampler.read


def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return {"a": "b"}[word]


def test_the_first_exception_of_a_tool_is_shown_once_with_its_file_and_line(caplog):
    wrong = ASKS % ("lookup", '"word": 5')
    turns = [wrong, *[ASKS % ("lookup", f'"word": "{word}"') for word in "xya"], "done"]
    with caplog.at_level(logging.WARNING):
        sample, _ = hold(turns, tools=[lookup])
    kinds = [use.error.partition(":")[0] for turn in sample.turns for use in turn.uses]
    assert kinds == ["malformed", "exception", "exception", ""]
    [shown] = [record.getMessage() for record in caplog.records]
    assert shown.startswith(
        f"Tool 'lookup' failed: exception: KeyError: 'x'\n  at {__file__}, line "
    )
    assert 'return {"a": "b"}[word]' in shown


def test_a_conversation_with_tools_from_settings_and_from_python():
    turns = [
        "I add." + ASKS % ("calculator", '"expression": "37*46"'),
        ASKS % ("add", '"a": 1, "b": 2') + ASKS % ("add", '"a": 1') + ASKS % ("sub", ""),
        "1702",
    ]
    sample, read = hold(turns, tools=[add, "calculator"])
    assert [turn.observation for turn in sample.turns] == [
        "1702",
        "3\nerror: arguments: 'b' is a required property\n"
        "error: there is no tool 'sub'. Known: add, calculator.",
        "",
    ]
    assert [[use.error for use in turn.uses] for turn in sample.turns] == [
        [""],
        ["", "malformed", "malformed"],
        [],
    ]
    assert [turn.end for turn in sample.turns] == ["", "", "done"]
    assert '"name": "calculator"' in read[0]
    assert '"name": "add"' in read[0]
    assert read[0].endswith("Count to 3. Count.<|im_end|>\n<|im_start|>assistant\n")
    assert read[1].startswith(read[0] + turns[0] + "<|im_end|>\n<|im_start|>user\n<tool_response>")
    assert read[2].startswith(read[1] + turns[1] + "<|im_end|>\n<|im_start|>user\n<tool_response>")


def test_a_conversation_with_an_object_of_trl():
    turns = [ASKS % ("increment", '"step": 2'), "done"]
    sample, read = hold(turns, environment=rlobj.from_trl(Counter))
    assert "Count to 3. Count. You are at 1.<|im_end|>" in read[0]
    assert sample.turns[0].observation == "Counter is now 3"
    assert [turn.reward for turn in sample.turns] == [0.0, 1.0]


@pytest.mark.slow
def test_the_policy_reads_what_it_reads_in_trl():
    from trl.chat_template_utils import add_response_schema
    from trl.trainer.grpo_trainer import GRPOTrainer

    tokenizer = add_response_schema(chat_tokenizer("qwen2_5"))
    end = tokenizer.eos_token_id
    theirs = Counter()
    theirs.reset(prompt=[{"role": "user", "content": ""}], answer="3", start=1)
    trainer: Any = SimpleNamespace(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        _is_vlm=False,
        chat_template=None,
        chat_template_kwargs={},
        tools=[theirs.increment, theirs.look],
        environment_factories=None,
        max_tool_calling_iterations=1,
        max_completion_length=10_000,
        use_vllm=False,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=10_000)),
        async_loop=asyncio.new_event_loop(),
        _sync_tool_dicts=[{"increment": theirs.increment}],
        _async_tool_dicts=[{"look": theirs.look}],
        _generate_single_turn=lambda ids, *_, **__: ([[end]], None),
    )
    trainer._get_tool_suffix_ids = lambda messages: GRPOTrainer._get_tool_suffix_ids(
        trainer, messages
    )
    thread = threading.Thread(target=trainer.async_loop.run_forever, daemon=True)
    thread.start()
    said = [{"role": "assistant", "content": "", "tool_calls": CALLS}]
    found = GRPOTrainer._tool_call_loop(
        trainer, [says()[:1]], [[1]], [[end]], [said], None, None, {}
    )
    trainer.async_loop.call_soon_threadsafe(trainer.async_loop.stop)
    thread.join()
    trainer.async_loop.close()
    environment = MethodEnvironment(Counter(), SETTINGS)
    run(environment.reset(PROBLEM))
    turn = run(environment.step(says(*CALLS)))
    assert found[1][0][1:4] == turn.observation
    assert found[5] == sum(bool(use.error) for use in turn.uses)
