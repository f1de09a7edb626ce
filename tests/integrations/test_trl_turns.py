"""Conversations in TRL: its tools and environments, its masks and its loss; the words are given."""

from __future__ import annotations

import re
import sys
from functools import partial
from itertools import chain
from math import nan
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from chats import chat_tokenizer
from datasets import Dataset
from integrations.trl_runs import (
    Gradients,
    GRPOConfig,
    GRPOTrainer,
    completions,
    config,
    off,
    planned,
)
from integrations.trl_runs import trainer as plain_trainer
from runs import metrics
from transformers import Qwen3Config, Qwen3ForCausalLM

import rlobj
from rlobj import Objective, TurnReturn, read_records, read_tables
from rlobj.base.interleaved import whole
from rlobj.integrations.trl import ObjectiveTrainer

slow = partial(pytest.param, marks=pytest.mark.slow)
PROMPTS = [[{"role": "user", "content": f"{n}?"}] for n in range(8)]
CALLS = (0, 1, 2, 1)
"""Calls of each response of a group."""
REWARDS = (0.0, 0.75, 1.0, None)
RECORD = {"output": {"tables_every": 1}}
OURS = {"objective": "dapo-loss", "record": False}


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first one.
        b: the second one.
    """
    return a + b


class Counter:
    """An environment that adds and owns the reward."""

    def reset(self, **columns: Any) -> str:
        self.calls = 0
        return " Add."

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first one.
            b: the second one.
        """
        self.calls += 1
        return a + b

    def get_reward(self) -> float:
        return self.calls / 4


def reward(completions: Any, **_: Any) -> list[float | None]:
    """By the place in the group."""
    return [REWARDS[i % 4] for i in range(len(completions))]


OWNED = {"reward_funcs": None, "environment_factory": Counter}


def decided(completions: Any, **_: Any) -> list[float]:
    return [(0.1, 0.5, 1.0, 0.2)[i % 4] for i in range(len(completions))]


def written(calls: int) -> list[str]:
    """What the policy writes, turn by turn: calls, of which the first works, and an answer."""
    names = ("add", "lost")
    call = '{{"name": "{}", "arguments": {{"a": {}, "b": 2}}}}'
    made = [call.format(names[i], calls - i) for i in range(calls)]
    turns = [*(f"<tool_call>\n{each}\n</tool_call>" for each in made), "It is a sum."]
    return [f"{turn}<|im_end|>" for turn in turns]


def scripted(kind: Any) -> Any:
    """A trainer of this kind with a sampler that writes these turns; the rest is TRL's."""

    def sample(self: Any, prompt_ids: Any, *_: Any, **named: Any) -> Any:
        tokenizer, found = self.processing_class, []
        for place, ids in enumerate(prompt_ids):
            said = tokenizer.decode(ids).partition("<|im_start|>user")[2]
            made = re.findall(r'"arguments": {"a": (\d)', said)
            calls = int(made[0]) if made else CALLS[place % 4]
            ids = tokenizer(written(calls)[len(made)])["input_ids"]
            found.append(ids if made else ids[: self.max_completion_length])
        return found, None

    return type("Scripted", (kind,), {"_generate_single_turn": sample})


def policy(size: int) -> Qwen3ForCausalLM:
    """A small model with random weights, sharp enough for different log-probs."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    length = {"max_position_embeddings": 4096}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=size, **sizes, **heads, **length)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


def trainer(kind: Any, folder: Path, **named: Any) -> Any:
    """A trainer with a chat template that knows tools; eight responses in four micro-batches."""
    tokenizer = chat_tokenizer("qwen3_instruct_2507")
    tokenizer.pad_token = "<|bos|>"
    names = GRPOConfig.__dataclass_fields__.keys() & named.keys()
    settings = {name: named.pop(name) for name in names}
    usual = {"per_device_train_batch_size": 2, "max_completion_length": 512, "max_steps": 1}
    named = {"reward_funcs": reward, "tools": [add], **named}
    return scripted(kind)(
        policy(len(tokenizer)),
        args=config(folder, **{**usual, **settings}),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
        **named,
    )


@pytest.mark.slow
def test_the_gradient_is_that_of_trls_own_loss(tmp_path: Path) -> None:
    """Two rounds: in the second one, ratios are not 1, and some are clipped."""
    found = []
    rounds = {"num_iterations": 2, "max_steps": 2, "learning_rate": 1e-2, "epsilon_high": 0.28}
    for kind, named in ((GRPOTrainer, {}), (ObjectiveTrainer, OURS)):
        kept = Gradients()
        one = trainer(kind, tmp_path, reward_funcs=decided, callbacks=[kept], **rounds, **named)
        one.train()
        found.append(kept.found)
    assert one.state.log_history[1]["rlobj/objective/clip_fraction"] > 0.01
    for theirs, ours in zip(*found, strict=True):
        assert theirs.abs().max() > 1e-3
        assert off(ours, theirs) < 1e-12


BY_TURN = Objective(advantage=TurnReturn(discount=0.5))
ADVANTAGES = [[-0.3125], [0.25, 0.25], [0.0625, -0.25, 0.625], [nan, nan]]
"""Of the turns of a group. Returns are 0; 0.375, 0.75; 0.25, 0.5, 1. The last response is
undecided, and the third turn is compared with the last turns of the others."""


def test_advantages_of_turns_reach_the_gradient(tmp_path: Path) -> None:
    kept = Gradients()
    given = {"objective": BY_TURN, "record": False, "callbacks": [kept]}
    one = trainer(ObjectiveTrainer, tmp_path, **given)
    [window] = planned(one)
    model, tokens = policy(len(one.processing_class)), 0
    for inputs in window.inputs:
        for i, place in enumerate((inputs["rlobj_ids"] % 4).tolist()):
            prompt, said, mine = (
                inputs[name][i].bool() for name in ("prompt_mask", "completion_mask", "tool_mask")
            )
            ids = torch.cat([inputs["prompt_ids"][i][prompt], inputs["completion_ids"][i][said]])
            turns = [one.processing_class(text)["input_ids"] for text in written(CALLS[place])]
            assert inputs["completion_ids"][i][said & mine].tolist() == [*chain(*turns)]
            logits = model(ids[None]).logits[0, :-1].log_softmax(-1)
            logprobs = logits.gather(-1, ids[1:, None])[-int(said.sum()) :, 0][mine[said]]
            sums = torch.stack([part.sum() for part in logprobs.split([*map(len, turns)])])
            if REWARDS[place] is not None:
                (-sums @ torch.tensor(ADVANTAGES[place]).double()).backward()
                tokens += len(logprobs)
    expected = torch.cat([p.grad.flatten() for p in model.parameters()]) / tokens
    assert off(kept.found[0], expected) < 1e-6  # TRL keeps advantages in single precision


RULE = "when(turn > 0, 2, 1) * (1 + turn_reward) + turn_position / turn.max(by='group')"


@pytest.mark.parametrize(
    ("named", "rewards"),
    [({"reward_funcs": decided}, (0.1, 0.5, 1.0, 0.2)), slow(OWNED, (0.0, 0.25, 0.25, 0.25))],
    ids=["tools", "environment"],
)
def test_the_record_has_turns(tmp_path: Path, named: Any, rewards: Any) -> None:
    objective = Objective().reweight(RULE)
    trainer(ObjectiveTrainer, tmp_path, objective=objective, **RECORD, **named).train()
    run, tokenizer = tmp_path / "_rlobj", chat_tokenizer("qwen3_instruct_2507")
    [update] = read_tables(run)
    table = update.table
    for row, place in enumerate((table.ids % 4).tolist()):
        rows, texts = table.responses == row, written(CALLS[place])
        sizes = [len(tokenizer(text)["input_ids"]) for text in texts]
        assert table.turn[rows].bincount().tolist() == sizes
        given = [0.0] * CALLS[place] + [rewards[place]]
        expected = torch.tensor(given).repeat_interleave(torch.tensor(sizes))
        assert torch.equal(table.turn_reward[rows].float(), expected)
    assert "to the bit" in repr(rlobj.replay(run, "turn_position.top(0.1, by='turn')"))
    first = len(tokenizer(written(1)[0])["input_ids"])
    told = [row for row in read_records(run).to_pylist() if row["response"] % 4 == 1]
    [before, _] = [row["before"] for row in told if row["position"] == first]
    said = "<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert before.endswith(said + "│")
    heard = "\n<|im_start|>user\n" + said
    [texts] = {tokenizer.decode(whole(r)) for _, r in update.sequences if len(r) == first + 13}
    assert texts == heard.join(written(1))
    [line] = metrics(run)
    numbers = {"turns/mean": 2, "tools/calls": 8, "tools/errors": 2, "response/truncated": 0}
    assert {name: line[name] for name in numbers} == numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "shares"),
    [
        ({"max_tool_calling_iterations": 1}, (0.25, 0, 0.25, 1.75)),
        slow({"max_completion_length": 70}, (0, 0.75, 0.75, 1)),
        slow({"max_completion_length": 80}, (0, 0.75, 0.75, 1.75)),
        slow({"max_completion_length": 50}, (0, 0.75, 0.75, 1)),
    ],
    ids=["no turn left", "no room for the answer", "nor for the next turn", "nor for the end"],
)
def test_conversations_that_end_at_a_limit_are_counted(
    tmp_path: Path, limit: Any, shares: Any
) -> None:
    named = {"objective": "grpo", "max_steps": 3, "reward_funcs": decided, **RECORD, **limit}
    one = trainer(ObjectiveTrainer, tmp_path, **named)
    one.train()
    names = ("turns/at_turns", "turns/at_tokens", "response/truncated", "turns/mean")
    for line in metrics(tmp_path / "_rlobj"):
        assert tuple(line[name] for name in names) == shares
    logged = one.state.log_history[0]
    assert (logged["rlobj/turns/at_turns"], logged["rlobj/turns/at_tokens"]) == shares[:2]


def test_a_rollout_without_a_mask_has_one_turn_beside_one_with_a_mask(tmp_path: Path) -> None:
    """Both are in one update; of the second one, every third token is a tool's."""

    def sometimes(prompts: Any, one: Any) -> dict[str, Any]:
        found = completions(prompts, one)
        masks = [[int(i % 3 != 2) for i in range(len(ids))] for ids in found["completion_ids"]]
        return {**found, **({"env_mask": masks} if one._progress.rows else {})}

    args = config(tmp_path, max_steps=1, steps_per_generation=2)
    named = {"objective": "grpo", "rollout_func": sometimes, **RECORD}
    plain_trainer(ObjectiveTrainer, args, **named).train()
    [update] = read_tables(tmp_path / "_rlobj")
    table = update.table
    first = table.spread(table.ids < 16)
    assert not table.turn_numbers[first].any()
    assert torch.equal(table.turn_numbers[~first], table.positions[~first] // 2)


SHARED = {"objective": BY_TURN, "reward_funcs": decided, "max_tool_calling_iterations": 1, **RECORD}


@pytest.mark.slow
def test_two_processes_count_and_compare_all_conversations(tmp_path: Path) -> None:
    trainer(ObjectiveTrainer, tmp_path / "one", **SHARED).train()
    words = [__file__, tmp_path / "two"]
    forked.run_ranks(words, timeout=300, **forked.TEST_MODULES)
    [one], [two] = (metrics(tmp_path / name / "_rlobj") for name in ("one", "two"))
    counted = [name for name in one if name.startswith(("turns/", "tools/", "response/"))]
    assert len(counted) >= 7
    assert {name: two[name] for name in counted} == {name: one[name] for name in counted}
    assert two["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-6)
    assert one["train/grad_norm"] > 1e-3


def test_a_frozen_model_scores_the_policys_tokens_of_a_conversation(tmp_path: Path) -> None:
    """It reads the tools' answers: the policy's own weights give the policy's log-probs."""
    teacher, tokenizer = tmp_path / "teacher", chat_tokenizer("qwen3_instruct_2507")
    policy(len(tokenizer)).save_pretrained(teacher)
    tokenizer.save_pretrained(teacher)
    objective = Objective(scores=["teacher"], shape="advantage + teacher_gap")
    named = {"objective": objective, "scores": {"teacher": {"model": str(teacher)}}, **RECORD}
    trainer(ObjectiveTrainer, tmp_path, **named).train()
    [update] = read_tables(tmp_path / "_rlobj")
    found, expected = update.table.columns["teacher_logprob"], update.table.logprobs
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-4, atol=0)
    assert expected.std() > 0.1


if __name__ == "__main__":  # one of two processes
    trainer(ObjectiveTrainer, Path(sys.argv[1]), gradient_accumulation_steps=2, **SHARED).train()
