"""Runs that train a value beside the policy, against loops of plain torch."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import restarts
import torch
import transformers
from benchmarks.embedded_policy import build_policy, build_tokenizer
from forked import call_in_ranks
from runs import (
    distance,
    make_steps,
    metrics,
    open_trainer,
    optimizer_of,
    ranks,
    same,
    weights,
    write_config,
)
from safetensors.torch import load_file
from tiny import save_tiny_policy, tiny_config
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import rlobj
from rlobj import ConfigError
from rlobj.base.interleaved import own, whole
from rlobj.models.loading import load_model, load_tokenizer
from rlobj.models.policy import prompt_limit
from rlobj.models.values import value_class
from rlobj.runs.checkpoints import checkpoints
from rlobj.scoring import score_samples
from rlobj.scoring.value_scorer import value_head
from rlobj.settings.run_config import RunConfig
from rlobj.settings.starting import doubts
from rlobj.settings.training import learning_rate
from rlobj.training import run_training
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.step import run_step
from rlobj.training.new_run import prepared

CRITIC = {"value": True, "learning_rate": 3e-3}
LOSS = [{"kind": "clipped_squared", "coefficient": 0.5}]
BOOTSTRAP = {"advantage": {"kind": "gae", "truncated": "bootstrap"}, "values": LOSS}
BOTH = {"steps": 4, "updates_per_step": 2, "learning_rate": 3e-3}


GRADED = """
def graded(response, answer, **columns):
    return float(sum(map(ord, response)) % 3 == 0)
"""
"""A reward that a random policy often gets."""


def config_of(policy: Path, **sections: Any) -> RunConfig:
    """Four steps of seven prompts with two responses of at most three tokens each."""
    (policy.parent / "graded.py").write_text(GRADED)
    usual: dict[str, Any] = {
        "objective": {"advantage": {"kind": "gae"}, "values": LOSS},
        "scores": {"critic": CRITIC},
        "sampling": {"prompts_per_step": 7, "group_size": 2, "max_tokens": 3, "dynamic": None},
        "training": {**BOTH, "warmup_steps": 0, "adam_epsilon": 1e-3},
        "checkpoint": {"every": 1, "keep": 9, "best": False},
        "rewards": {"kind": "custom", "target": f"{policy.parent}/graded.py:graded"},
    }
    for name, section in sections.items():
        usual[name] = section if name == "rewards" else {**usual.get(name, {}), **section}
    return tiny_config(policy, "dapo-loss", **usual)


def critic_with(**settings: Any) -> dict[str, Any]:
    return {"critic": {**CRITIC, **settings}}


def value_weights(run: Path, step: int = -1) -> dict[str, torch.Tensor]:
    files = sorted((checkpoints(run)[step] / "scores" / "critic").glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def plain_values(model: Any, prompt: Any, tokens: Any, bounds: Any = None) -> torch.Tensor:
    """V of the context before each token and after the last one, by the model's own forward."""
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 :, 0]
    if bounds is None:
        return logits
    low, high = bounds
    return low + (high - low) * (0.5 + torch.arctan(logits) / torch.pi)


def assert_values(config: RunConfig, run: Path) -> list[Any]:
    """Check the values of a first step with a head of random numbers; its responses."""
    assert config.critic is not None
    with open_trainer(config, run) as trainer:
        rollout, learner = trainer.collect(), trainer.learner
        model = learner.critic.policy.model
        assert not value_head(model).weight.any()
        torch.nn.init.normal_(value_head(model).weight)
        torch.nn.init.normal_(value_head(model).bias)
        batch = learner.shard(rollout)
        table = learner.critic.score(batch, batch.table)
        before, after = [], []
        with torch.no_grad():
            for response in batch.responses:
                read, mine = whole(response.interleaved), own(response.interleaved)
                mine = torch.ones(len(read)).bool() if mine is None else torch.from_numpy(mine)
                values = plain_values(model.eval(), response.prompt, read, config.critic.range)
                before.append(values[:-1][mine])
                after.append(values[-1] if response.finish == "length" else values[-1] * 0)
    torch.testing.assert_close(table.columns["critic_value"], torch.cat(before))
    torch.testing.assert_close(table.columns["critic_bootstrap"], torch.stack(after))
    return list(batch.responses)


@pytest.mark.parametrize(
    ("training", "bounds"),
    [
        ({"packed": False, "shared_prompts": False}, None),
        ({"packed": False, "shared_prompts": True}, None),
        ({"packed": True, "shared_prompts": False}, None),
        ({"micro_batch_tokens": 20}, [-1.0, 3.0]),
    ],
)
def test_values_are_those_of_a_plain_loop_before_each_token(policy, tmp_path, training, bounds):
    scores = critic_with(range=bounds)
    config = config_of(policy, objective=BOOTSTRAP, scores=scores, training=training)
    responses = assert_values(config, tmp_path / "run")
    assert 0 < sum(r.finish == "length" for r in responses) < len(responses)


def test_values_of_conversations_are_those_of_the_policys_tokens_alone(policy, tmp_path):
    sampling = {"prompts_per_step": 3, "max_tokens": 8, "rollout_tokens": 14, "stop": [*"0123456"]}
    config = config_of(
        policy,
        objective=BOOTSTRAP,
        sampling=sampling,
        environment={"target": f"{restarts.__file__}:Restarts"},
        rewards={"kind": "environment"},
        training={"steps": 1},
    )
    responses = assert_values(config, tmp_path / "values")
    assert any(r.turns[1:] and r.finish == "length" for r in responses)
    assert any(r.began for r in responses)
    run_training(config, tmp_path / "run")
    assert metrics(tmp_path / "run")[0]["value/grad_norm"] > 0


def save_gpt2(folder: Path, positions: int) -> Any:
    """A policy with learned positions; its configuration."""
    config = transformers.GPT2Config(
        **{"vocab_size": 20, "n_positions": positions, "n_embd": 16, "n_layer": 1, "n_head": 2},
        **{"bos_token_id": 1, "eos_token_id": 2},
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return config


def test_a_model_with_learned_positions_has_room_for_the_value_after_a_response(tmp_path):
    folder = tmp_path / "gpt2"
    config = save_gpt2(folder, 7)
    bootstrap = config_of(folder, objective=BOOTSTRAP)
    assert prompt_limit(bootstrap, config) == 3
    assert prompt_limit(config_of(folder), config) == 4
    longest = bootstrap.model_copy(
        update={"sampling": bootstrap.sampling.model_copy(update={"max_tokens": 2})}
    )
    assert any(r.finish == "length" for r in assert_values(longest, tmp_path / "run"))


def test_a_conversation_leaves_room_for_the_value_after_it(tmp_path):
    save_gpt2(tmp_path / "gpt2", 9)
    config = config_of(
        tmp_path / "gpt2",
        objective=BOOTSTRAP,
        sampling={"prompts_per_step": 7, "max_tokens": 4, "stop": [*"0123456"]},
        environment={"target": f"{restarts.__file__}:Restarts"},
        rewards={"kind": "environment"},
    )
    responses = assert_values(config, tmp_path / "run")
    assert max(len(r.prompt) + len(whole(r.interleaved)) for r in responses) == 8


def advantages_by_hand(rewards: Any, values: Any, lam: float) -> tuple[Any, Any]:
    """A of each token, and what the value is trained on, response after response."""
    advantages = []
    for reward, of_response in zip(rewards, values, strict=True):
        later, own = 0.0, []
        for t in reversed(range(len(of_response))):
            last = t + 1 == len(of_response)
            following = 0.0 if last else of_response[t + 1]
            later = (reward if last else 0.0) + following - of_response[t] + lam * later
            own.insert(0, later)
        advantages.append(torch.tensor(own, dtype=torch.float64))
    returns = torch.cat(advantages) + torch.cat(values)
    flat = torch.cat(advantages)
    return (flat - flat.mean()) / (flat.var() + 1e-8).sqrt(), returns


def step_by_hand(policy: Any, value: Any, rollout: Any, config: RunConfig, step: int) -> None:
    """The updates of one step: in each pass, each half updates the policy, then the value twice."""
    training, critic = config.training, config.critic
    assert critic is not None
    responses = rollout.responses
    sequences = [(list(r.prompt), list(r.tokens)) for r in responses]
    with torch.no_grad():
        old = score_samples(policy[0], sequences).logprobs
        before = [plain_values(value[0], *pair)[:-1].double() for pair in sequences]
    rewards = [r.reward for r in responses]
    advantages, returns = advantages_by_hand(rewards, before, 0.95)
    spans = torch.arange(len(old)).split([len(tokens) for _, tokens in sequences])
    groups = list(dict.fromkeys(r.group for r in responses))
    policy[1].param_groups[0]["lr"] = learning_rate(training, step)
    for _ in range(training.passes):
        for half in (groups[:4], groups[4:]):
            chosen = [i for i, r in enumerate(responses) if r.group in half]
            rows = torch.cat([spans[i] for i in chosen])
            few, goal, sign = [sequences[i] for i in chosen], returns[rows], advantages[rows]
            ratio = (score_samples(policy[0], few).logprobs - old[rows]).exp()
            gain = torch.minimum(ratio * sign, ratio.clamp(0.8, 1.28) * sign)
            updated(policy, -gain.mean(), training.max_grad_norm)
            start = torch.cat(before)[rows]
            for _ in range(critic.updates):
                now = torch.cat([plain_values(value[0], *pair)[:-1] for pair in few])
                near = start + (now - start).clamp(-0.2, 0.2)
                errors = torch.maximum((now - goal) ** 2, (near - goal) ** 2)
                updated(value, 0.5 * 0.5 * errors.mean(), critic.max_grad_norm)


def updated(pair: Any, loss: Any, largest: float) -> None:
    model, optimizer = pair
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), largest)
    optimizer.step()


@pytest.mark.parametrize("tokens", [20, 16384])
def test_updates_are_those_of_a_plain_loop(policy, tmp_path, tokens):
    training = {"passes": 2, "micro_batch_tokens": tokens}
    config = config_of(policy, scores=critic_with(updates=2), training=training)
    with open_trainer(config, tmp_path / "run") as trainer:
        taken: list[Any] = []
        take = trainer.pipeline.take
        trainer.pipeline.take = lambda step: taken.append(take(step)) or taken[-1]
        models = trainer.policy.model, trainer.learner.critic.policy.model
        ours = [copy.deepcopy(model) for model in models]
        for _ in range(2):
            run_step(trainer)
        found = [weights_of(model) for model in models]
    settings = config.training.model_copy(update={"learning_rate": CRITIC["learning_rate"]})
    value = ours[1].eval(), optimizer_of(ours[1], settings)
    model = ours[0], optimizer_of(ours[0], config.training)
    before = [weights_of(each) for each in ours]
    for step, rollout in enumerate(taken):
        step_by_hand(model, value, rollout, config, step)
    for mine, theirs, start in zip(ours, found, before, strict=True):
        moved = distance(theirs, start)
        assert moved > 1e-3
        assert distance(theirs, weights_of(mine)) < 2e-3 * moved


def test_one_update_with_one_forward_pass_equals_one_in_many_micro_batches(policy, tmp_path):
    """The pass that gives the old values serves the only update."""
    for tokens in (20, 16384):
        training = {"updates_per_step": 1, "steps": 2, "micro_batch_tokens": tokens}
        config = config_of(policy, training=training)
        run_training(config, tmp_path / str(tokens))
    many, one = (value_weights(tmp_path / name) for name in ("20", "16384"))
    assert distance(many, one) < 1e-5
    assert metrics(tmp_path / "16384")[-1]["value/loss"] > 0


def test_an_update_in_which_no_token_counts_leaves_the_value_as_it_is(policy, tmp_path):
    with open_trainer(config_of(policy), tmp_path / "run") as trainer:
        learner, rollout = trainer.learner, trainer.collect()
        learner.train_on(rollout)
        before = weights_of(learner.critic.policy.model)
        whole = learner.shard(rollout)
        undecided = whole.table.replace(rewards=torch.full((14,), torch.nan))
        [table] = learner.objective.with_advantages([learner.critic.score(whole, undecided)])
        batch = whole.mini_batches(table)[0]
        done = learner.critic.update(
            learner.objective, batch, learner.plan(learner.objective, batch), 1
        )
        assert done["value/skipped_updates"] == 1
        assert done["value/grad_norm"] == 0
        assert same(before, weights_of(learner.critic.policy.model))


def test_a_step_that_trains_the_value_alone_is_not_idle(policy, tmp_path):
    with open_trainer(config_of(policy, objective={"drop": "prob >= 0"}), tmp_path / "run") as run:
        run_step(run)
        line, idle = run.metrics, run.failures["idle"]
    assert line["train/skipped_updates"] == 2
    assert line["value/grad_norm"] > 0
    assert idle == 0


def test_the_context_has_room_for_the_value_after_a_cut_response(policy):
    described = load_model(config_of(policy).model, str(policy)).config
    cut = {"advantage": {"kind": "gae", "truncated": "bootstrap"}}
    shorter, usual = (
        prompt_limit(config_of(policy, objective=objective), described) for objective in (cut, {})
    )
    assert usual == described.max_position_embeddings - 3
    assert shorter == usual - 1


def of_a_model(folder: Path, strategy: str) -> None:
    """A run of a model in memory, with as many responses a step as the folder's name says; of its
    mini-batches, one has a single response."""
    prompts = int(folder.name)
    one = {"prompts_per_step": prompts, "group_size": 1}
    training = {"strategy": strategy, "steps": 3, "updates_per_step": min(prompts, 2)}
    scores = critic_with(value_warmup=1, max_grad_norm=0.05)
    source = folder / "policy"
    config = config_of(source, objective=BOOTSTRAP, sampling=one, training=training, scores=scores)
    model = load_model(config.model, str(source))
    inputs = CallerInputs(model=model, tokenizer=load_tokenizer(config.model, str(source)))
    run_training(config, folder / strategy, inputs)


def sharded(rank: int, size: int, folder: str) -> None:
    of_a_model(Path(folder), "fsdp2")


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [3, 1])
def test_two_ranks_with_shards_train_a_value_as_one_does(tmp_path, prompts):
    folder = tmp_path / str(prompts)
    folder.mkdir()
    save_tiny_policy(folder / "policy")
    of_a_model(folder, "ddp")
    call_in_ranks(sharded, 2, folder)
    one, two = (value_weights(folder / name) for name in ("ddp", "fsdp2"))
    assert distance(one, value_weights(folder / "ddp", 0)) > 1e-3
    assert distance(one, two) < 1e-4
    assert distance(weights(folder / "ddp"), weights(folder / "fsdp2")) < 1e-4


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_resumed_run_is_the_whole_run_to_the_bit(policy, tmp_path, lora):
    settings = critic_with(lora=lora, value_warmup=1, schedule="linear", warmup_steps=2)
    config = config_of(policy, scores=settings, model={"lora": lora})
    run_training(config, tmp_path / "whole")
    make_steps(config, tmp_path / "cut", 2)
    run_training(config, tmp_path / "cut", resume=True)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert same(value_weights(tmp_path / "cut"), value_weights(tmp_path / "whole"))
    assert distance(value_weights(tmp_path / "whole", 0), value_weights(tmp_path / "whole")) > 1e-4
    rates = [line["value/learning_rate"] for line in metrics(tmp_path / "whole")]
    assert rates == pytest.approx([1.5e-3, 3e-3, 3e-3, 1.5e-3])


def test_adapters_of_a_value_are_trained_with_its_head_and_merged_in_a_checkpoint(policy, tmp_path):
    config = config_of(policy, scores=critic_with(lora={"rank": 2}))
    with open_trainer(config, tmp_path / "run") as trainer:
        model = trainer.learner.critic.policy.model
        names = {name for name, p in model.named_parameters() if p.requires_grad}
        assert names - {n for n in names if ".lora_" in n} == {"score.weight", "score.bias"}
        for _ in range(2):
            run_step(trainer)
        ids = torch.tensor([[3, 4, 5, 6]])
        with torch.no_grad():
            expected = model.eval()(input_ids=ids).logits
    folder = checkpoints(tmp_path / "run")[-1] / "scores" / "critic"
    loaded: Any = load_model(config.model, str(folder), kind=value_class(str(folder)))
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(input_ids=ids).logits, expected)


def test_the_policy_stays_to_the_bit_while_the_value_is_trained_alone(policy, tmp_path):
    config = config_of(policy, scores=critic_with(value_warmup=2))
    run_training(config, tmp_path / "run")
    folders = checkpoints(tmp_path / "run")
    trained = [load_file(folder / "model" / "model.safetensors") for folder in folders]
    start = load_file(policy / "model.safetensors")
    stored = [same({name: each[name] for name in start}, start) for each in trained]
    assert stored == [True, True, False, False]
    values = [value_weights(tmp_path / "run", step) for step in range(4)]
    assert all(distance(a, b) > 1e-5 for a, b in itertools.pairwise(values))
    moments = [(folder / "optimizer" / "moments.safetensors") for folder in folders]
    assert [bool(load_file(file)) for file in moments] == [False, False, True, True]
    for line in metrics(tmp_path / "run"):
        alone = line["step"] <= 2
        assert (line["train/grad_norm"] == 0) is alone
        assert line["train/skipped_updates"] == 0
        assert line["value/grad_norm"] > 0


def test_the_value_of_a_run_begins_another_one(policy, tmp_path):
    config = config_of(policy, training={"steps": 1})
    run_training(config, tmp_path / "first")
    folder = checkpoints(tmp_path / "first")[-1] / "scores" / "critic"
    described = json.loads((folder / "config.json").read_text())
    assert described["architectures"] == ["Qwen3ForTokenClassification"]
    again = prepared(config_of(policy, scores=critic_with(model=str(folder))))
    assert again.critic is not None
    assert again.critic.digest is not None
    with open_trainer(again, tmp_path / "second") as trainer:
        model = trainer.learner.critic.policy.model
        assert same(weights_of(model), value_weights(tmp_path / "first"))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"scores\.critic\.model: .* it has changed since"):
        run_training(again, tmp_path / "third")


def test_a_run_from_another_begins_with_a_value_of_its_policy(policy, tmp_path):
    run_training(config_of(policy, training={"steps": 1}), tmp_path / "first")
    settings = {"training.steps": 1}
    rlobj.train(from_run=tmp_path / "first", settings=settings, out=tmp_path / "second", trust=True)
    start = load_file(checkpoints(tmp_path / "first")[-1] / "model" / "model.safetensors")
    assert metrics(tmp_path / "second")[0]["value/mean"] == 0
    now = value_weights(tmp_path / "second")
    shared = {name for name in now if name.startswith("model.")}
    assert 0 < distance({n: now[n] for n in shared}, {n: start[n] for n in shared}) < 0.01


@pytest.mark.parametrize("sampling", [{"async_depth": 1}, {"schedule": "continuous"}])
def test_a_value_is_trained_while_the_next_rollout_is_sampled(policy, tmp_path, sampling):
    run_training(config_of(policy, sampling=sampling), tmp_path / "run")
    assert all(line["value/grad_norm"] > 0 for line in metrics(tmp_path / "run"))


@pytest.mark.parametrize("what", ["gradient", "values"])
def test_what_is_not_finite_changes_nothing(policy, tmp_path, what):
    with open_trainer(config_of(policy), tmp_path / "run") as trainer:
        run_step(trainer)
        models = trainer.policy.model, trainer.learner.critic.policy.model
        head: Any = value_head(models[1])
        if what == "gradient":
            head.weight.register_hook(lambda gradient: gradient * torch.nan)
        else:
            head.bias.data.fill_(torch.nan)
        before = [weights_of(model) for model in models]
        run_step(trainer)
        after, line = [weights_of(model) for model in models], trainer.metrics
    bits = [{n: x.view(torch.int32) for n, x in each.items()} for each in (before[1], after[1])]
    assert same(*bits)
    assert same(before[0], after[0]) is (what == "values")
    assert line.get("value/skipped_updates", 0) == (2 if what == "gradient" else 0)
    assert line["train/skipped_updates"] == (0 if what == "gradient" else 1)
    assert trainer.failures["nonfinite"] > 0


def test_a_model_from_python_with_adapters_gives_its_own_weights_to_a_value(policy, tmp_path):
    model = build_policy(3)
    start = weights_of(model)
    config = config_of(policy, model={"lora": {"rank": 2}})
    inputs = CallerInputs(model=model, tokenizer=build_tokenizer())
    with open_trainer(config, tmp_path / "run", inputs) as trainer:
        value = weights_of(trainer.learner.critic.policy.model)
        assert {n for n in value if "lora" in n} == set()
        trunk = {name: value[name] for name in value if name.startswith("model.")}
        assert same(trunk, {name: start[name] for name in trunk})
        run_step(trainer)


def test_the_model_of_a_value_may_end_with_another_token_but_reads_the_same_ones(policy, tmp_path):
    other = save_tiny_policy(tmp_path / "other", seed=1)
    file = other / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "eos_token": "5"}))
    config = config_of(policy, scores=critic_with(model=str(other)))
    with open_trainer(config, tmp_path / "run") as trainer:
        found = weights_of(trainer.learner.critic.policy.model)
    assert torch.equal(
        found["model.norm.weight"], load_file(other / "model.safetensors")["model.norm.weight"]
    )
    tokens = json.loads((other / "tokenizer.json").read_text())
    words = tokens["model"]["vocab"]
    words["7"], words["8"] = words["8"], words["7"]
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    message = r"scores\.critic: id \d+ is '7' in the policy's tokenizer and '8' in that of critic"
    with pytest.raises(ConfigError, match=message):
        run_training(config, tmp_path / "again")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scores.critic": None}, r"nothing trains it: use scores\.critic\.value=true"),
        ({"scores.critic.model": "nowhere/x/y"}, r"there is no run or model folder 'nowhere/x/y'"),
        ({"scores.critic.model": "reference"}, r"model.*: expected policy, a copy of it before"),
        ({"scores.critic.value": False}, r"scores\.critic\.value.*: expected true; without it"),
        ({"scores.critic.range": [1, 0]}, r"expected \[lowest, highest\]"),
        ({"scores.critic.lora": {"targets": ["none"]}}, r"scores\.critic\.lora\.targets"),
    ],
)
def test_mistakes_are_told_before_the_run(policy, tmp_path, settings, message):
    usual = {"objective": {"advantage": "gae", "values": LOSS}, "scores": {"critic": CRITIC}}
    given: dict[str, Any] = {"model": str(policy), "data": [{"prompt": "1,2=", "answer": "2"}]}
    usual["scores"] = {} if "scores.critic" in settings else usual["scores"]
    settings = {} if "scores.critic" in settings else settings
    layers = {**usual, **settings, "data.template": "{prompt}", "sampling.max_tokens": 3}
    layers["sampling.engine"] = "transformers"
    with pytest.raises(ConfigError, match=message):
        rlobj.train("dapo-loss", out=tmp_path / "run", settings=layers, **given)
    assert not (tmp_path / "run").exists()


def test_a_model_without_the_head_of_a_value_gets_a_new_one_and_says_so(policy, tmp_path, caplog):
    model = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
    model.save_pretrained(tmp_path / "reward")
    load_tokenizer(config_of(policy).model, str(policy)).save_pretrained(tmp_path / "reward")
    config = config_of(policy, scores=critic_with(model=str(tmp_path / "reward")))
    with open_trainer(config, tmp_path / "run") as trainer:
        assert not value_head(trainer.learner.critic.policy.model).weight.any()
    assert "has no head of a token classifier; a new one is trained" in caplog.text


def test_a_model_of_several_labels_is_refused_by_the_name_of_its_setting(policy, tmp_path):
    config = AutoConfig.from_pretrained(policy, num_labels=3)
    AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path / "labels")
    load_tokenizer(config_of(policy).model, str(policy)).save_pretrained(tmp_path / "labels")
    several = config_of(policy, scores=critic_with(model=str(tmp_path / "labels")))
    with pytest.raises(ConfigError, match=r"scores\.critic\.model: .* has 3 labels; expected one"):
        run_training(several, tmp_path / "run")


def test_a_warm_up_that_no_step_comes_after_is_doubted(policy):
    shorter, whole = (config_of(policy, scores=critic_with(value_warmup=n)) for n in (3, 4))
    assert not [*doubts(shorter)]
    [doubt] = doubts(whole)
    assert "scores.critic.value_warmup: no policy is trained in 4 steps" in doubt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "lora"),
    [
        ("ddp", None),
        ("fsdp2", None),
        ("fsdp2", {"rank": 2}),
        pytest.param("zero2", None, marks=pytest.mark.deepspeed),
        pytest.param("zero3", None, marks=pytest.mark.deepspeed),
        pytest.param("zero3", {"rank": 2}, marks=pytest.mark.deepspeed),
    ],
)
def test_a_value_on_two_ranks_resumed_on_three_is_that_of_one_process(
    policy, tmp_path, strategy, lora
):
    settings = critic_with(lora=lora, updates=2, range=[-1.0, 2.0])
    config = config_of(
        policy,
        objective=BOOTSTRAP,
        scores=settings,
        training={"micro_batch_tokens": 40},
    )
    run_training(config, tmp_path / "one")
    file = write_config(config, tmp_path / "config.yaml")
    words = ["train", "--config", file, "--model", policy, "--strategy", strategy]
    ranks([*words, "--out", tmp_path / "two", "--set", "training.steps=2"], 2)
    ranks(["resume", tmp_path / "two", "--set", "training.steps=4", "--trust"], 3)
    moved = distance(value_weights(tmp_path / "one", 0), value_weights(tmp_path / "one"))
    apart = distance(value_weights(tmp_path / "two"), value_weights(tmp_path / "one"))
    assert apart < 1e-2 * moved
    assert distance(weights(tmp_path / "two"), weights(tmp_path / "one")) < 1e-2 * moved
    for before, after in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        for name in ("value/mean", "value/loss", "value/grad_norm", "value/explained_variance"):
            assert after[name] == pytest.approx(before[name], rel=1e-3, abs=2e-5), name
