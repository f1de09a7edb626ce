"""Streams resume exactly, and a problem becomes the tokens that a model is asked to continue."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rlobj.base.errors import ConfigError, DataError
from rlobj.data import (
    MATH_TEMPLATE,
    DataConfig,
    Problem,
    ProblemStream,
    encode_prompt,
    format_prompt,
)

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
    size=st.integers(1, 7),
    draws=st.lists(st.integers(0, 9), max_size=6),
    after=st.integers(1, 20),
)
def test_restored_stream_continues_exactly(size, draws, after):
    stream = ProblemStream(some_problems(size), seed=1)
    for count in draws:
        assert len(stream.next(count)) == count
    saved = json.loads(json.dumps(stream.state()))
    other = ProblemStream(some_problems(size), seed=99)
    other.restore(saved)
    assert ids(other.next(after)) == ids(stream.next(after))


@given(draws=st.lists(st.integers(0, 9), max_size=6))
def test_order_does_not_depend_on_the_size_of_the_draws(draws):
    whole = ids(ProblemStream(some_problems(5)).next(sum(draws)))
    stream = ProblemStream(some_problems(5))
    assert [problem.id for count in draws for problem in stream.next(count)] == whole


def test_a_position_in_another_data_set_is_refused():
    state = ProblemStream(some_problems(3)).state()
    with pytest.raises(DataError, match="another data set"):
        ProblemStream(some_problems(4)).restore(state)
    with pytest.raises(DataError, match="at least one problem"):
        ProblemStream([])


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
    assert encode_prompt(with_bos, "ab", chat=False) == [0, 3, 4]
    assert encode_prompt(with_bos, "<s>ab", chat=False) == [0, 3, 4]
    without = tokenizer_with(None, "$A")
    assert encode_prompt(without, "ab", chat=False) == [3, 4]


def test_chat_template_adds_its_own_bos_and_starts_the_assistant_message():
    tokenizer = tokenizer_with(CHAT, "<s> $A")
    assert encode_prompt(tokenizer, "ab", chat=True) == [0, 2, 3, 4, 3]
    assert encode_prompt(tokenizer, "ab", chat=False) == [0, 3, 4]


def test_missing_chat_template_and_empty_prompts_are_errors():
    with pytest.raises(ConfigError, match=r"model\.chat_template=false"):
        encode_prompt(tokenizer_with(None, "$A"), "ab", chat=True)
    with pytest.raises(ConfigError, match="has no tokens"):
        encode_prompt(tokenizer_with(None, "$A"), "", chat=False)
