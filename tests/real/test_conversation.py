"""SmolLM2 and a tool. Its chat template has no tools: calls are in the text of a response."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyarrow.parquet import read_table
from real.sums import short_run
from runs import metrics
from vllm_tools import TOLERANCE

from rlobj.base.errors import ConfigError
from rlobj.training import run_training

pytestmark = pytest.mark.slow
CALL = '<tool_call>{{"name": "calculator", "arguments": {{"expression": "{}"}}}}</tool_call>'
SHOWN = "".join(
    f"Question: {text}\n{CALL.format(text)}{value}\nAnswer: {value}\n\n"
    for text, value in (("3 + 14", 17), ("25 + 36", 61))
)
"""Two conversations as the policy is to hold them."""


def test_the_policy_reads_what_the_calls_in_its_text_give(smollm2: Path, scratch: Path) -> None:
    config = short_run(
        smollm2,
        scratch,
        data={"template": SHOWN + "Question: {prompt}\n"},
        environment={"tools": ["calculator"], "calls": "hermes", "max_turns": 2},
        sampling={
            "group_size": 2,
            "max_tokens": 42,
            "temperature": 0.5,
            "stop": ["</tool_call>", "\n\n"],
        },
    )
    run_training(config, scratch / "run")
    assert all(line["sampler/logprob_gap"] < TOLERANCE for line in metrics(scratch / "run"))
    rows = [
        row
        for step in (1, 2, 3)
        for row in read_table(scratch / f"run/samples/step-{step:06d}.parquet").to_pylist()
    ]
    computed = 0
    for row in rows:
        first, *_ = json.loads(row["conversation"])
        if call := re.search(r'"expression": "(\d+) \+ (\d+)"}}</tool_call>$', first["text"]):
            assert first["observation"] == str(int(call[1]) + int(call[2]))
            computed += 1
    assert len(rows) == 12
    assert computed > 6  # the policy follows its two examples


@pytest.mark.parametrize(
    ("chat_template", "reason"),
    [
        (True, "does not write the calls of tools.*false and environment.calls=hermes"),
        (False, r"Use environment\.calls=hermes"),
    ],
)
def test_tools_that_the_template_does_not_have_are_refused_with_what_to_type(
    smollm2: Path, scratch: Path, chat_template: bool, reason: str
) -> None:
    model = {"chat_template": chat_template}
    config = short_run(smollm2, scratch, model=model, environment={"tools": ["calculator"]})
    with pytest.raises(ConfigError, match=reason):
        run_training(config, scratch / "run")
    assert not (scratch / "run").exists()
