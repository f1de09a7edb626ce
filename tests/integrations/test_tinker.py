"""An objective as Tinker's loss: the package's own code differentiates it on a local model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import rlobj
from rlobj import BatchError, ConfigError, Gate, Objective, TokenBatch, column, parse, prob
from rlobj.integrations.tinker import loss_function

tinker = pytest.importorskip("tinker")
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]
REWARDS = [1.0, 0.0, 1.0, float("nan"), 0.0, 0.0, 1.0, 0.0]  # the fourth is undecided
LENGTHS = [7, 5, 9, 6, 8, 0, 5, 11]  # the sixth has no trained token
PROMPT = 3


class Local:
    """A service that holds a model: the log-probs of data, and the gradient of cross-entropy."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
        self.model = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, **sizes, **heads))
        self.model.lm_head.weight.data *= 60  # likely and unlikely tokens

    def logprobs(self, datum: Any) -> torch.Tensor:
        """log π of the target tokens, [T]."""
        targets = datum.loss_fn_inputs["target_tokens"].to_torch()
        logits = self.model(torch.tensor([datum.model_input.to_ints()])).logits[0]
        return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]

    def forward_backward_custom(self, data: list[Any], loss_fn: Any) -> tuple[torch.Tensor, Any]:
        """As the client's: a forward pass, the loss here, and a pass back with its weights."""
        with torch.no_grad():
            outputs = [
                {"logprobs": tinker.TensorData.from_torch(self.logprobs(datum))} for datum in data
            ]
        forward = tinker.ForwardBackwardOutput(
            loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={}
        )
        result = tinker.TrainingClient._compute_custom_loss(data, loss_fn, forward)
        pairs = [(d.loss_fn_inputs["weights"].to_torch(), self.logprobs(d)) for d in result.data]
        return self.gradient(-sum((w * x).sum() for w, x in pairs)), result

    def gradient(self, loss: Any) -> torch.Tensor:
        """That of all parameters, flat."""
        self.model.zero_grad()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])


def make_data(service: Local, **more: torch.Tensor) -> list[Any]:
    """Data as tinker-cookbook assembles them, of a sampler near the model.

    Args:
        service: holds the model.
        more: other fields, [the tokens of all Data], such as columns.
    """
    torch.manual_seed(1)
    data, place = [], 0
    for length in LENGTHS:
        tokens = torch.randint(64, (PROMPT + max(length, 1) + 1,))
        width = len(tokens) - 1
        mask = torch.zeros(width)
        mask[PROMPT : PROMPT + length] = 1
        fields = {"target_tokens": tokens[1:], "mask": mask}
        fields |= {name: values[place : place + width] for name, values in more.items()}
        prompt = tinker.ModelInput.from_ints(tokens[:-1].tolist())
        datum = tinker.Datum(model_input=prompt, loss_fn_inputs=fields)
        with torch.no_grad():
            near = service.logprobs(datum) + 0.4 * torch.randn(width)
        fields["logprobs"] = near.clamp(max=0.0) * mask
        fields["advantages"] = mask * (torch.arange(width) % 3 - 1)
        data.append(tinker.Datum(model_input=prompt, loss_fn_inputs=fields))
        place += width
    return data


def table_of(service: Local, data: list[Any], **columns: Any) -> TokenBatch:
    """The table of the data, whose log-probs have a gradient in the local model."""
    masks = [datum.loss_fn_inputs["mask"].to_torch().bool() for datum in data]
    logprobs = [service.logprobs(d)[mask] for d, mask in zip(data, masks, strict=True)]
    return TokenBatch(
        lengths=torch.tensor(LENGTHS), groups=GROUPS, logprobs=torch.cat(logprobs), **columns
    )


def of_field(data: list[Any], name: str) -> torch.Tensor:
    """A field at the trained tokens, [N]."""
    fields = [datum.loss_fn_inputs for datum in data]
    return torch.cat([f[name].to_torch()[f["mask"].to_torch().bool()] for f in fields])


def check_equal(service: Local, data: list[Any], loss_fn: Any, expected: Any) -> dict[str, float]:
    """The loss and its gradient are those of an output of the objective, up to rounding."""
    ours = service.gradient(expected.loss)
    theirs, result = service.forward_backward_custom(data, loss_fn)
    assert ours.abs().max() > 1e-4
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-6 * float(ours.abs().max()))
    assert result.loss_sum == pytest.approx(expected.loss.item(), rel=1e-5)
    return result.metrics


@pytest.mark.parametrize("preset", ["dapo-loss", "cispo", "gspo", "clip-cov", "kl-cov", "dppo"])
def test_gradients_are_those_of_the_objective_on_the_local_model(preset: str) -> None:
    service = Local()
    data = make_data(service)
    objective = rlobj.load_preset(preset).objective.resolve(16)
    table = table_of(service, data, rewards=REWARDS, old_logprobs=of_field(data, "logprobs"))
    metrics = check_equal(
        service,
        data,
        loss_function(objective, groups=GROUPS, rewards=REWARDS),
        objective(table),
    )
    assert metrics["objective/clip_fraction"] >= 0
    assert all(isinstance(value, float) for value in metrics.values())


def test_the_plan_is_of_the_whole_batch() -> None:
    """Two calls of half a batch are two updates, and have another gradient."""
    service = Local()
    data, objective = make_data(service), Objective(keep=prob.bottom(0.2))
    loss_fn = loss_function(objective, groups=GROUPS, rewards=REWARDS)
    whole, _ = service.forward_backward_custom(data, loss_fn)
    halves = [
        service.forward_backward_custom(
            data[part], loss_function(objective, groups=GROUPS[part], rewards=REWARDS[part])
        )[0]
        for part in (slice(0, 4), slice(4, 8))
    ]
    assert float((sum(halves) / 2 - whole).norm() / whole.norm()) > 0.05


def test_without_rewards_the_advantages_of_the_data_count() -> None:
    service = Local()
    data, objective = make_data(service), rlobj.load_preset("dapo-loss").objective
    table = table_of(service, data, old_logprobs=of_field(data, "logprobs"))
    table = table.credited(advantages=of_field(data, "advantages"))
    check_equal(service, data, loss_function(objective, groups=GROUPS), objective(table))


def test_an_objective_that_corrects_the_sampler_has_ratios_to_this_call() -> None:
    service = Local()
    data, objective = make_data(service), rlobj.load_preset("tis").objective
    table = table_of(service, data, rewards=REWARDS, sampler_logprobs=of_field(data, "logprobs"))
    loss_fn = loss_function(objective, groups=GROUPS, rewards=REWARDS)
    metrics = check_equal(service, data, loss_fn, objective(table))
    assert metrics["objective/clip_fraction"] == 0


def test_fields_are_columns_by_their_names() -> None:
    service = Local()
    tokens = sum(PROMPT + max(length, 1) for length in LENGTHS)
    torch.manual_seed(2)
    more = {"old_logprobs": -torch.rand(tokens) * 9, "stage": torch.randint(3, (tokens,))}
    data = make_data(service, **more, ref_logprobs=-torch.rand(tokens) * 9)
    objective = Objective(
        keep=(column("stage") > 0) & parse("staleness < 1"),
        columns=["stage"],
        penalties=[{"kind": "kl", "coefficient": 0.1}],
    )
    names = ("old_logprobs", "ref_logprobs")
    columns = {name: of_field(data, name) for name in names}
    table = table_of(
        service, data, rewards=REWARDS, columns={"stage": of_field(data, "stage")}, **columns
    )
    loss_fn = loss_function(objective, groups=GROUPS, rewards=REWARDS)
    metrics = check_equal(service, data, loss_fn, objective(table))
    assert 0 < metrics["objective/kept_fraction"] < 1


def test_rows_of_a_rollout_count_once() -> None:
    service = Local()
    data, objective = make_data(service), rlobj.load_preset("agent-lightning").objective
    rollouts, rewards = [0, 1, 1, 2, 3, 4, 5, 6], [1.0, 0.0, 0.0, *REWARDS[3:]]
    old = {"old_logprobs": of_field(data, "logprobs"), "rewards": rewards}
    table = table_of(service, data, rollouts=torch.tensor(rollouts), **old)
    loss_fn = loss_function(objective, groups=GROUPS, rewards=rewards, rollouts=rollouts)
    check_equal(service, data, loss_fn, objective(table))


def test_a_state_goes_from_batch_to_batch() -> None:
    service = Local()
    data, state = make_data(service), {}
    gate = Gate(target=0.0, on=2.0, off=1.0, of=parse("old_surprisal.mean()"))
    objective = Objective(controllers={"W": gate}, reweight="W")
    losses = []
    for _ in range(2):
        loss_fn = loss_function(objective, groups=GROUPS, rewards=REWARDS, state=state)
        losses.append(service.forward_backward_custom(data, loss_fn)[1].loss_sum)
    assert state["update"] == 2
    assert state["W"] != objective.init()["W"]


def test_what_tinker_cannot_give_is_refused_by_name() -> None:
    for preset, message in {
        "stapo": "Tinker does not provide the column 'entropy', which drop ",
        "lp-reg": "'proxy_logprobs'",
        "ppo": "'critic_new_value'",
        "lopti": "make a loss of each one of objective.phases",
    }.items():
        with pytest.raises(ConfigError, match=message):
            loss_function(rlobj.load_preset(preset).objective, groups=GROUPS)


def test_data_without_what_the_objective_reads_are_refused() -> None:
    service = Local()
    data = make_data(service)
    logprobs = [torch.zeros(len(d.loss_fn_inputs["mask"].data), requires_grad=True) for d in data]
    kl = rlobj.load_preset("grpo").objective.but(penalties=[{"kind": "kl", "coefficient": 0.1}])
    with pytest.raises(BatchError, match="'ref_logprobs'"):
        loss_function(kl, groups=GROUPS, rewards=REWARDS)(data, logprobs)
    inputs = data[2].loss_fn_inputs
    loss_fn = loss_function(Objective(), groups=GROUPS, rewards=REWARDS)
    with pytest.raises(BatchError, match="has no Datum"):
        loss_function(Objective(), groups=[], rewards=[])([], [])
    mask = inputs.pop("mask")
    with pytest.raises(BatchError, match=r"Datum 2 needs loss_fn_inputs\['mask'\] \[12\]"):
        loss_fn(data, logprobs)
    inputs["weights"] = mask  # in place of a mask
    assert loss_fn(data, logprobs)[0].requires_grad
