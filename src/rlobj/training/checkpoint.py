"""Checkpoints: all state that is needed to resume a run, with any strategy and number of ranks.

    RUN/checkpoints/step-000010/
        model/          a Hugging Face folder; every rank writes a share of the tensors
        scores/NAME/    weights of a score that follows the policy; every rank writes a share. Of a
                        value, a Hugging Face folder; with LoRA, its adapter/ has what is trained
        adapter/        only with LoRA: a peft folder (model/ has merged weights)
        optimizer/      AdamW's moments by parameter name; every rank writes a share; those of a
                        value are in NAME/
        random/         random states of Python and torch, one file per rank
        state.json      step, controllers, position in the problems
        manifest.json   size in bytes and CRC-32 of every file

Tensors are stored whole and by name, so any strategy with any number of ranks can read them.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import RunError, reported
from rlobj.base.files import parse_json, remove, settle
from rlobj.base.paths import step_name
from rlobj.base.weights import mapped_tensors
from rlobj.models.adapters import adapter_weights, without_adapters
from rlobj.models.policy import Policy
from rlobj.objectives.statistics import Comm
from rlobj.ranks import together
from rlobj.runs.checkpoints import write_manifest
from rlobj.runs.run_folder import RunFolder
from rlobj.training.parallel.strategies import MOMENTS

_ADAPTER = "adapter/adapter_model"
"""A file of peft's own format: one rank writes it whole."""


def write(
    run: RunFolder,
    step: int,
    parallel: Any,
    policy: Policy,
    state: Mapping[str, Any],
    learner: Any,
) -> Path:
    """Write a checkpoint. It gets its final name when every rank has written its part.

    Args:
        run: the run's folder.
        step: number of finished steps.
        parallel: the strategy that trains the policy.
        policy: the policy.
        state: content of state.json.
        learner: has the scores whose weights follow the policy, and the value.

    Raises:
        RunError: writing failed; existing checkpoints are unchanged.
    """
    comm, name = parallel.comm, step_name(step)
    place = run.checkpoints / f".{name}.partial"
    critic, models = learner.critic, {"model": policy}
    if critic is not None:
        models[f"scores/{critic.name}"] = critic.policy
    try:
        with _writing(run, comm):
            if comm.rank == 0:
                remove(place)
        for file, tensors in _shares(policy, parallel, learner):
            with _writing(run, comm):
                _write_share(place, file, tensors, comm)
            del tensors  # or the next share would be copied beside it
        with _writing(run, comm):
            (place / "random").mkdir(exist_ok=True)
            cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
            states = [state.tolist() for state in (torch.get_rng_state(), *cuda)]
            state_text = json.dumps({"python": random.getstate(), "torch": states})
            (place / "random" / f"rank-{comm.rank}.json").write_text(state_text, encoding="utf-8")
        with _writing(run, comm):
            if comm.rank == 0:
                for folder, saved in models.items():
                    saved.save_settings(place / folder)
                    if comm.size > 1:
                        _write_index(place / folder)
                if (place / "adapter").is_dir():
                    policy.model.peft_config["default"].save_pretrained(place / "adapter")
                state_text = json.dumps(state, indent=1)
                (place / "state.json").write_text(state_text, encoding="utf-8")
                write_manifest(place)
                settle(place, run.checkpoints / name)
    except RunError:
        if comm.rank == 0:
            remove(place)
        raise
    return run.checkpoints / name


@contextmanager
def _writing(run: RunFolder, comm: Comm) -> Iterator[None]:
    """Raise RunError on all ranks if one of them cannot write."""
    what = f"cannot write a checkpoint to {run.checkpoints}"
    # safetensors and torch have classes of their own for a full disk
    with together(comm, "writing a checkpoint"), reported(RunError, what, Exception):
        yield


def _shares(policy: Policy, parallel: Any, learner: Any) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the file and this rank's share of its tensors, on the CPU.

    All ranks gather every tensor; rank r keeps the tensors r, r + size, r + 2·size, ...
    """
    comm = parallel.comm

    def mine(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        share = islice(tensors, comm.rank, None, comm.size)
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in share}

    def trained(model: Any) -> Iterable[tuple[str, Any]]:
        return ((n, p) for n, p in model.named_parameters() if p.requires_grad)

    def moments(parallel: Any, model: Any) -> Iterable[tuple[str, Tensor]]:
        for name, parameter in trained(model):
            for key, value in parallel.moments(parameter).items():
                yield f"{name}/{key}", torch.as_tensor(value)

    yield "model/model", mine(policy.weights(parallel.full))
    yield "optimizer/moments", mine(moments(parallel, policy.model))
    for name, score in learner.scores.lagged.items():
        yield f"scores/{name}/weights", mine(score.whole())
    if (critic := learner.critic) is not None:
        name, full, model = critic.name, critic.parallel.full, critic.policy.model
        yield f"scores/{name}/model", mine(critic.policy.weights(full))
        yield f"optimizer/{name}/moments", mine(moments(critic.parallel, model))
        if critic.settings.lora is not None:
            whole = ((name, full(parameter)) for name, parameter in trained(model))
            yield f"scores/{name}/adapter/weights", mine(whole)
    if without_adapters(policy.model) is not policy.model:
        weights = adapter_weights(policy.model, parallel.full)
        yield _ADAPTER, {name: weight.cpu().contiguous() for name, weight in weights}


def _write_share(place: Path, file: str, tensors: dict[str, Tensor], comm: Comm) -> None:
    from safetensors.torch import save_file

    if file == _ADAPTER and comm.rank > 0:
        return
    if file != _ADAPTER and comm.size > 1:
        file = f"{file}-{comm.rank + 1:05d}-of-{comm.size:05d}"
    path = place / f"{file}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={"format": "pt"})


def _write_index(folder: Path) -> None:
    """Write the index of a Hugging Face folder, which names the file of each tensor."""
    from safetensors import safe_open

    files, total = {}, 0
    for file in sorted(folder.glob("model-*.safetensors")):
        total += file.stat().st_size
        with safe_open(file, "pt") as tensors:
            files.update(dict.fromkeys(tensors.keys(), file.name))
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def restore_optimizer(folder: Path, parallel: Any, model: torch.nn.Module) -> None:
    """Restore AdamW's moments, with the strategy and the ranks of this run."""
    saved = mapped_tensors(folder.glob("*.safetensors"))
    for name, parameter in model.named_parameters():
        # A parameter that the loss does not depend on has none; before the first update, none has.
        if parameter.requires_grad and f"{name}/step" in saved:
            moments = {key: saved[f"{name}/{key}"] for key in (*MOMENTS, "step")}
            parallel.set_moments(parameter, moments)


def restore_scores(checkpoint: Path, lagged: Mapping[str, Any]) -> None:
    """Restore the weights of scores that follow the policy, with the ranks of this run."""
    for name, score in lagged.items():
        score.restore(mapped_tensors((checkpoint / "scores" / name).glob("*.safetensors")))


def restore_random(checkpoint: Path, rank: int) -> None:
    """Restore this rank's random states; a rank without saved states keeps its own."""
    file = checkpoint / "random" / f"rank-{rank}.json"
    if not file.is_file():
        return
    state = parse_json(file.read_bytes())
    version, numbers, gauss = state["python"]
    current, *cuda = (torch.tensor(words, dtype=torch.uint8) for words in state["torch"])
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(current)
    if len(cuda) == torch.cuda.device_count() > 0:  # skipped on other hardware
        torch.cuda.set_rng_state_all(cuda)
