"""Streams resume exactly, and a problem becomes the tokens that a model is asked to continue."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rlobj.base.errors import ConfigError, DataError
from rlobj.data import (
    MATH_TEMPLATE,
    Chat,
    DataConfig,
    Problem,
    ProblemStream,
    encode_prompt,
    format_prompt,
)
from rlobj.models.policy import chat_of
from rlobj.settings.run_config import ModelConfig

# ---- the stream ------------------------------------------------------------------------------


def some_problems(count):
    return [Problem(str(i), f"What is {i}?", str(i)) for i in range(count)]


def ids(problems):
    return [problem.id for problem in problems]


def test_each_epoch_visits_every_problem_in_its_own_order():
    stream = ProblemStream(some_problems(20), seed=3)
    first, second = ids(stream.next(20)), ids(stream.next(20))
    assert sorted(first) == sorted(second) == sorted(str(i) for i in range(20))
    assert first != second
    assert ids(ProblemStream(some_problems(20), seed=3).next(20)) == first
    assert ids(ProblemStream(some_problems(20), seed=4).next(20)) != first


@given(
    size=st.integers(1, 7), draws=st.lists(st.integers(0, 9), max_size=6), after=st.integers(1, 20)
)
def test_restored_stream_continues_exactly(size, draws, after):
    stream = ProblemStream(some_problems(size), seed=1)
    for count in draws:
        assert len(stream.next(count)) == count
    saved = json.loads(json.dumps(stream.state()))
    other = ProblemStream(some_problems(size), seed=99)
    other.restore(saved)
    assert ids(other.next(after)) == ids(stream.next(after))
    whole = ProblemStream(some_problems(size), seed=1)
    whole.next(sum(draws))
    assert whole.state() == saved


def test_a_position_in_another_data_set_is_refused():
    state = ProblemStream(some_problems(3)).state()
    with pytest.raises(DataError, match="another data set"):
        ProblemStream(some_problems(4)).restore(state)


# ---- prompts -----------------------------------------------------------------------------------


@given(st.text(alphabet="{}\\$ abinoprtu"))
def test_braces_of_a_question_do_not_change(question):
    problem = Problem("1", question, "2", {"unit": "{prompt}"})
    formatted = format_prompt("a {prompt} b \\boxed{} c {unit} {{prompt}}", problem)
    assert formatted == f"a {question} b \\boxed{{}} c {{prompt}} {{prompt}}"


def test_error_names_the_nearest_placeholder_and_excludes_the_answer():
    problem = Problem("1", "2+2?", "4", {"unit": "m"})
    with pytest.raises(ConfigError, match="Did you mean 'prompt'"):
        format_prompt("{promt}", problem)
    with pytest.raises(ConfigError, match=r"'\{problem\}'.*\{prompt\} is the question"):
        format_prompt("{problem}", problem)
    with pytest.raises(ConfigError, match=r"contains '\{answer\}'.*Known: prompt, unit"):
        format_prompt("{prompt} {answer}", problem)


def test_default_template_depends_on_the_source_and_is_recorded():
    from rlobj.data.tasks import TASKS

    assert DataConfig(source="owner/name").model_dump()["template"] == MATH_TEMPLATE
    assert DataConfig(source="owner/name", template="Q: {prompt}").template == "Q: {prompt}"
    assert DataConfig().template == "{prompt}"
    assert DataConfig(source=next(iter(TASKS))).template == "{prompt}"
    assert MATH_TEMPLATE.endswith("in \\boxed{}.")
    with pytest.raises(ConfigError, match="does not contain"):
        DataConfig(source="owner/name", template="Answer in \\boxed{}.")


def tokenizer_with(template: str | None, single: str):
    """A character tokenizer whose post-processor adds what `single` says."""
    vocabulary = {"<s>": 0, "</s>": 1, "<u>": 2, **{c: i + 3 for i, c in enumerate("abc ")}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="c"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<s>", "</s>", "<u>"])
    backend.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


CHAT = (
    "<s>{% for m in messages %}<u>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


def test_bos_is_added_once_and_eos_never():
    with_bos = tokenizer_with(None, "<s> $A </s>")
    assert encode_prompt(with_bos, "ab", chat=None) == [0, 3, 4]
    assert encode_prompt(with_bos, "<s>ab", chat=None) == [0, 3, 4]
    without = tokenizer_with(None, "$A")
    assert encode_prompt(without, "ab", chat=None) == [3, 4]


def test_chat_template_adds_its_own_bos_and_starts_the_assistant_message():
    tokenizer = tokenizer_with(CHAT, "<s> $A")
    assert encode_prompt(tokenizer, "ab", chat=Chat()) == [0, 2, 3, 4, 3]
    assert encode_prompt(tokenizer, "ab", chat=None) == [0, 3, 4]


def chat_of_template(template: str | None, system: str | None = None, **config: Any) -> Chat | None:
    tokenizer = tokenizer_with(template, "<s> $A")
    settings = ModelConfig(name="a/model", **config)
    return chat_of(tokenizer, settings, DataConfig(source="x.jsonl", system=system), "a/model")


def test_a_system_message_and_arguments_go_through_the_template():
    template = CHAT + "{% if not enable_thinking %}b{% endif %}"
    tokenizer = tokenizer_with(template, "<s> $A")
    for thinking, end in ((True, []), (False, [4])):
        chat = chat_of_template(template, "bb", chat_template_kwargs={"enable_thinking": thinking})
        assert encode_prompt(tokenizer, "a", chat) == [0, 2, 4, 4, 2, 3, 3, *end]
    assert chat_of_template(None) is None
    assert chat_of_template(CHAT, chat_template=False) is None


ALONE = "{{ messages[-1].content }}"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "settings", "message"),
    [
        (None, {"system": "a"}, "the prompts of 'a/model' go through none"),
        (CHAT, {"system": "a", "chat_template": False}, "need a chat template"),
        (None, {"chat_template_kwargs": {"x": 1}}, "need a chat template"),
        (None, {"chat_template": True}, r"has none\. Use model\.chat_template=false"),
        (ALONE, {"system": "b"}, r"of 'a/model' does not use data\.system"),
        (REFUSING, {"system": "b"}, r"does not use data\.system"),
        (CHAT, {"chat_template_kwargs": {"thinking": 1}}, r"does not use .*kwargs\.thinking"),
    ],
)
def test_settings_that_no_chat_template_uses_are_errors(template, settings, message):
    with pytest.raises(ConfigError, match=message):
        chat_of_template(template, **settings)


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% if %}", "{{ 1 / 0 }}"])
def test_a_chat_template_that_fails_is_an_error(template):
    with pytest.raises(ConfigError, match=r"chat template fails: .*Use model\.chat_template=false"):
        encode_prompt(tokenizer_with(template, "$A"), "a", Chat())
    with pytest.raises(ConfigError, match="has no tokens"):
        encode_prompt(tokenizer_with(None, "$A"), "", chat=None)
