"""The log-probs of SmolLM2's samplers beside those of the scorer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from real.sums import EXAMPLES
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_tools import NEEDS_VLLM, TOLERANCE, gap

from rlobj.samplers import Sampler, SamplingSettings, TransformersSampler
from rlobj.samplers.vllm import VllmSampler, VllmSettings

pytestmark = pytest.mark.slow
LICENSE = Path(__file__).parents[2] / "LICENSE"
"""A long text in ordinary language."""


@pytest.fixture(scope="module")
def loaded(smollm2: Path) -> tuple[Any, Any]:
    """The model in float32, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(
    scope="module",
    params=[
        "transformers",
        pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.skipif(**NEEDS_VLLM)]),
    ],
)
def sampler(request: Any, smollm2: Path, loaded: tuple[Any, Any]) -> Iterator[Sampler]:
    model, tokenizer = loaded
    if request.param == "transformers":
        yield TransformersSampler(model, tokenizer)
        return
    engine = VllmSampler(
        str(smollm2),
        tokenizer,
        eos=[tokenizer.eos_token_id],
        settings=VllmSettings(kv_cache_bytes=256 << 20, extra={"max_model_len": 2100}),
        dtype=torch.float32,
    )
    yield engine
    engine.close()


def prompt(tokenizer: Any, kind: str) -> list[int]:
    """The token ids of a prompt of this kind."""
    if kind == "chat":
        question = [{"role": "user", "content": "Name three colours of the rainbow."}]
        return tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    text = LICENSE.read_text() if kind == "long" else f"{EXAMPLES}53 + 35 ="
    return tokenizer(text)["input_ids"][:2000]


@pytest.mark.parametrize(("kind", "least"), [("examples", 20), ("chat", 30), ("long", 2000)])
def test_log_probs_of_the_sampler_are_those_of_the_scorer(
    sampler: Sampler, loaded: tuple[Any, Any], kind: str, least: int
) -> None:
    model, tokenizer = loaded
    ids = prompt(tokenizer, kind)
    assert len(ids) >= least
    asked = SamplingSettings(max_tokens=8)
    [responses] = sampler.sample([ids], count=2, settings=asked, seeds=[0])
    assert len({tuple(response.tokens) for response in responses}) == 2
    assert gap(model, responses) < TOLERANCE
