"""The model of an evaluation: found, and opened in an engine, a sampler with its tokenizer.

Finding does not import transformers, so that a mistake is an error at once.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rlobj.base.errors import ConfigError, counted
from rlobj.base.paths import path_of, there
from rlobj.data import Chat, Problem, encode_prompt, format_prompt
from rlobj.models.embedded import embedded_policy
from rlobj.models.gguf_files import dense_folder
from rlobj.models.location import gguf_digest, require_model
from rlobj.models.threads import parameters, usual_threads
from rlobj.runs.checkpoints import named_checkpoint, require_sound
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import SETTINGS_FILE, in_another_trainer, is_run
from rlobj.samplers import Sampler
from rlobj.settings import profiles
from rlobj.settings.layers import Layer
from rlobj.settings.run_config import ModelConfig, RunConfig


@dataclass(frozen=True)
class ModelSource:
    """A model that is not loaded yet, or a transformers model in memory.

    Attributes:
        name: for people and files.
        layer: the settings that come with the model.
        locate: finds or makes its folder, or gives the hub id or the model in memory.
        tokenizer: of a model in memory.
    """

    name: str
    layer: Layer
    locate: Callable[[], Any]
    tokenizer: Any = None


def require_tokenizer(model: Any, tokenizer: Any, passed: bool) -> None:
    """Check that a model object comes with its tokenizer, and a model's name without one.

    Args:
        model: the object or the name.
        tokenizer: that was passed with it.
        passed: whether the model is an object.

    Raises:
        ConfigError: the tokenizer is missing, or it is too much.
    """
    if passed and tokenizer is None:
        raise ConfigError(f"model is a {type(model).__name__} object: pass its tokenizer as well")
    if tokenizer is not None and not passed:
        raise ConfigError("tokenizer= is for a model object; a folder or hub id has its own")


def find_model(
    model: Any,
    tokenizer: Any = None,
    problems: Sequence[Any] | None = None,
    checkpoint: str | None = None,
) -> ModelSource:
    """Find a model and the settings that come with it, without loading it.

    Args:
        model: as given to `evaluate`.
        tokenizer: of a model object.
        problems: their names, None = those of the model. The embedded policy is that of the first
            task among them; without a task, it is the one that reads a user's own problems.
        checkpoint: of a run, as given to `evaluate`.

    Raises:
        ConfigError: no such model, or no such checkpoint.
    """
    passed = not isinstance(model, str | Path)
    run = not passed and is_run(path_of(model))
    if checkpoint is not None and not run:
        raise ConfigError(f"checkpoint {checkpoint} needs a run, and the model is {model}")
    require_tokenizer(model, tokenizer, passed)
    if passed:
        name = getattr(model.config, "name_or_path", "") or type(model).__name__
        return ModelSource(name, ("model", {"model": {"name": name}}), lambda: model, tokenizer)
    name, path = str(model), path_of(model)
    if name == "embedded":
        return _embedded([profiles.DEFAULT_TASK] if problems is None else problems)
    if run:
        stored = read_settings(path)
        layer = (name, evaluated_settings(stored))
        if checkpoint in ("initial", "0"):
            return ModelSource(f"{name}@initial", layer, lambda: _before_training(path, stored))
        chosen = named_checkpoint(path, checkpoint)
        require_sound(chosen, "model/")
        return ModelSource(name, layer, lambda: str(chosen / "model"))
    if there(path / SETTINGS_FILE) and not there(path / "config.json"):
        raise ConfigError(f"{name} is an evaluation. To see its results: rlobj eval show {name}")
    require_model(name)
    return ModelSource(name, ("MODEL", {"model": {"name": name}}), lambda: dense_folder(name))


def _embedded(problems: Sequence[Any]) -> ModelSource:
    tasks = [name for name in problems if isinstance(name, str) and name in profiles.PROFILES]
    task = tasks[0] if tasks else profiles.OWN_PROBLEMS_TASK

    profile = profiles.PROFILES[task] if tasks else profiles.OWN_PROBLEMS_PROFILE
    return ModelSource("embedded", ("embedded", profile), lambda: str(embedded_policy(task)))


def _before_training(run: Path, stored: Mapping[str, Any]) -> str:
    """The folder or hub id of the model that a run began with.

    Raises:
        ConfigError: only its trainer knows it, or a GGUF file has changed.
    """
    config = ModelConfig(**stored["model"])
    if "model" in stored.get("objects", {}) or (config.name is None and in_another_trainer(run)):
        raise ConfigError(f"{run} began with a model in memory: name the folder that has it")
    if config.name is None:
        return str(embedded_policy(profiles.embedded_task(stored["data"]["source"])))
    gguf_digest(config)
    return dense_folder(config.name)


def evaluated_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that its evaluations have; what else it has may name code."""
    of_training = ("objective", "scores", "columns")
    kept = {name: value for name, value in stored.items() if name not in of_training}
    return {**kept, "sampling": {**kept["sampling"], "engine": "transformers", "async_depth": 0}}


@dataclass(frozen=True)
class Engine:
    """An open sampler with its tokenizer.

    Attributes:
        sampler: samples responses.
        tokenizer: the model's.
        chat: how prompts go through the chat template; None = they do not.
        context: positions of the model; None if it does not say.
        facts: short texts for people, by name.
        settings: what changes numbers: the engine's name and its arithmetic.
    """

    sampler: Sampler
    tokenizer: Any
    chat: Chat | None
    context: int | None
    facts: dict[str, str]
    settings: dict[str, Any]

    @property
    def unknown(self) -> int | None:
        """The token of unknown characters; None if that token also means something else."""
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        unknown = self.tokenizer.unk_token_id
        return None if unknown in [getattr(self.tokenizer, name) for name in names] else unknown

    def encoder(self, template: str) -> Callable[[Problem], list[int]]:
        """A function from a problem to the token ids of its prompt."""
        return lambda problem: encode_prompt(
            self.tokenizer, format_prompt(template, problem), self.chat
        )


@contextlib.contextmanager
def open_engine(config: RunConfig, model: Any, tokenizer: Any = None) -> Iterator[Engine]:
    """Open the engine that `sampling.engine` names.

    Args:
        config: the settings.
        model: a folder or hub id, or with a tokenizer a transformers model, used as it is.
        tokenizer: the model's.

    Raises:
        ConfigError: no such model, a server that holds another one, or vLLM for a model object.
    """
    in_process = config.sampling.engine in ("auto", "transformers")
    if tokenizer is not None and not in_process:
        what = f"sampler is {config.sampling.engine}, which reads a folder"
        raise ConfigError(f"{what}: save the model, and pass the folder")
    threads = torch.get_num_threads()
    engine = _in_process(config, model, tokenizer) if in_process else _with_vllm(config, model)
    try:
        yield engine
    finally:
        torch.set_num_threads(threads)
        engine.sampler.close()


def _in_process(config: RunConfig, model: Any, tokenizer: Any) -> Engine:
    from rlobj.models.loading import arithmetic
    from rlobj.models.policy import chat_of, load_policy
    from rlobj.samplers import TransformersSampler

    name, dtype = str(config.model.name), arithmetic(config.model)
    if tokenizer is None:
        place = "cuda" if torch.cuda.is_available() else "cpu"
        policy = load_policy(config.model, config.data, model, device=place)
        name, model, tokenizer = model, policy.model, policy.tokenizer
        torch.set_num_threads(usual_threads(model))
        model.to(place)  # new adapters
    elif config.model.dtype == "auto":
        dtype = None
    weights, batch = next(model.parameters()), config.sampling.batch_tokens
    device = weights.device.type
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device == "cpu" else ""
    text = f"{name}, {parameters(model):,} parameters"
    return Engine(
        TransformersSampler(model, tokenizer, batch_tokens=batch, autocast=dtype),
        tokenizer,
        chat_of(tokenizer, config.model, config.data, name),
        getattr(model.config.get_text_config(), "max_position_embeddings", None),
        {"policy": text, "device": device + threads},
        {"name": "transformers", "dtype": str(dtype or weights.dtype).removeprefix("torch.")},
    )


def _with_vllm(config: RunConfig, source: str) -> Engine:
    from transformers import AutoConfig, GenerationConfig

    from rlobj.models.loading import load_tokenizer
    from rlobj.models.policy import chat_of
    from rlobj.models.vllm_sampler import vllm_sampler

    tokenizer = load_tokenizer(config.model, source)
    chat = chat_of(tokenizer, config.model, config.data, source)
    try:
        generation = GenerationConfig.from_pretrained(source)
    except OSError:  # a model without one
        generation = None
    trusted = config.model.trust_remote_code
    described = AutoConfig.from_pretrained(source, trust_remote_code=trusted)
    model = SimpleNamespace(config=described, generation_config=generation)
    sampler: Any = vllm_sampler(config, source, tokenizer, model)
    name = config.sampling.engine
    settings: dict[str, Any] = {"name": name}
    if name == "vllm":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if config.sampling.vllm.extra:
            settings["extra"] = dict(config.sampling.vllm.extra)
    else:
        sampler.require_model(source)
        device = config.sampling.server.url
    settings["dtype"] = str(sampler.dtype).removeprefix("torch.")
    facts = {"policy": source, "engine": name, "device": device}
    context = getattr(described.get_text_config(), "max_position_embeddings", None)
    return Engine(sampler, tokenizer, chat, context, facts, settings)
