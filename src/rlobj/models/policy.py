"""The policy: a causal language model with its tokenizer.

Progress bars of transformers.

LoRA through peft: the adapters are trained, and the model without them is the reference.

    W' = W + alpha/r · B·A        Hu et al. 2021, arXiv:2106.09685

Samplers and checkpoints are given W'.

The tokenizers of two models that read the same token ids, and their end tokens.

The vLLM samplers that a configuration names.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from rlobj.answers.worker import peak_memory
from rlobj.base.errors import ConfigError, MissingExtra, Setting, reported
from rlobj.base.files import parse_json, read_whole
from rlobj.base.interleaved import Interleaved
from rlobj.base.weights import load_complete
from rlobj.config.run_config import LoraConfig, ModelConfig, RunConfig
from rlobj.config.scores import ScoreConfig
from rlobj.data import Chat, DataConfig, Problem, encode_prompt, format_prompt
from rlobj.data.templates import MEMORY, SECONDS
from rlobj.models.loading import filled, hollow_model
from rlobj.models.location import score_folder
from rlobj.samplers import eos_ids
from rlobj.samplers.vllm import VllmSampler, VllmServerSampler


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """Hide transformers' progress bars: local files load in no time."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


_NAME = "default"


def with_adapters(model: nn.Module, config: LoraConfig, adapter: Path | None) -> Any:
    """The model with frozen weights and adapters to train; new adapters do not change its output.

    Raises:
        MissingExtra: no peft.
        ConfigError: targets that the model does not have, or that are no linear layers; an adapter
            without all tensors.
    """
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "lora", "training low-rank adapters") from error
    if adapter is not None:
        with warnings.catch_warnings(), reported(ConfigError, f"'{adapter}'", UserWarning):
            warnings.filterwarnings("error", "Found missing adapter keys", UserWarning)
            return peft.PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    targets = config.targets if isinstance(config.targets, str) else list(config.targets)
    alpha: Any = config.alpha  # peft says int, and computes with any number
    settings = peft.LoraConfig(
        r=config.rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM"
    )
    with reported(ConfigError, f"model.lora.targets={config.targets}", ValueError):
        wrapped = peft.get_peft_model(model, settings)
    for name, layer in _layers(without_adapters(wrapped)):
        if not isinstance(layer.base_layer, nn.Linear):
            kind = type(layer.base_layer).__name__
            raise ConfigError(f"model.lora.targets: {name} is a {kind}; expected linear layers")
    return wrapped


def without_adapters(model: Any) -> Any:
    """The transformers model, with or without adapters in it."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@torch.no_grad()
def merged_weights(
    model: Any, full: Callable[[nn.Parameter], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor) of the transformers model with merged adapters, and stored buffers.

    Args:
        model: with or without adapters.
        full: gives one parameter whole, wherever its shards lie.
    """
    inner = without_adapters(model)
    layers = dict(_layers(inner))
    for name, parameter in inner.named_parameters():
        if ".lora_" in name:
            continue
        tensor = full(parameter)
        owner, found, leaf = name.rpartition(".base_layer.")
        if found:
            name = f"{owner}.{leaf}"
            if leaf == "weight":
                layer = layers[owner]
                low, high = (full(each[_NAME].weight) for each in (layer.lora_A, layer.lora_B))
                tensor = tensor + layer.scaling[_NAME] * (high @ low)
        yield name, tensor
    stored = inner.state_dict().keys()
    yield from ((name, buffer) for name, buffer in inner.named_buffers() if name in stored)


def adapter_weights(
    model: Any, full: Callable[[nn.Parameter], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """(name in a peft checkpoint, whole tensor) of each adapter weight."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            yield name.replace(f".{_NAME}.", "."), full(parameter)


def _layers(inner: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in inner.named_modules():
        if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
            yield name, module


_SECONDS, _MEMORY = SECONDS, MEMORY
"""What a chat template may take for one prompt."""


@dataclass(frozen=True)
class Policy:
    """A model, and how problems become its prompts.

    Attributes:
        model: the causal language model, with float32 weights and no dropout; with LoRA, peft's.
        tokenizer: its tokenizer.
        source: the folder or hub id that it was loaded from.
        chat: how prompts go through the chat template; None = they do not.
        template: the text around a problem.
        test_template: the text around a held-out problem.
    """

    model: Any
    tokenizer: Any
    source: str
    chat: Chat | None
    template: str
    test_template: str

    def encode(self, problem: Problem) -> list[int]:
        """The token ids of a problem's prompt."""
        return encode_prompt(self.tokenizer, format_prompt(self.template, problem), self.chat)

    def encode_test(self, problem: Problem) -> list[int]:
        """`encode` for a held-out problem."""
        return encode_prompt(self.tokenizer, format_prompt(self.test_template, problem), self.chat)

    def recompute_activations(self) -> None:
        """Compute activations again in the backward pass, which saves memory and takes time."""
        newer = getattr(self.model, "activation_checkpointing_enable", None)
        (newer or self.model.gradient_checkpointing_enable)()

    def weights(
        self, full: Callable[[nn.Parameter], Tensor], *, as_stored: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) of each weight, one at a time, with LoRA merged in.

        Args:
            full: returns one parameter whole, if it is sharded.
            as_stored: use the names of a Hugging Face checkpoint and not those of the modules.
        """
        inner = without_adapters(self.model)
        for name, tensor in merged_weights(self.model, full):
            # Some modules fuse several tensors of the checkpoint.
            if as_stored and getattr(inner, "_weight_conversions", None):
                from transformers.core_model_loading import revert_weight_conversion

                yield from revert_weight_conversion(inner, {name: tensor}).items()
            else:
                yield name, tensor

    def save_settings(self, folder: Path) -> None:
        """Write a Hugging Face model folder without its weights."""
        inner = without_adapters(self.model)
        inner.config.save_pretrained(folder)
        if inner.generation_config is not None:
            inner.generation_config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_policy(
    config: ModelConfig, data: DataConfig, source: str, adapter: Path | None = None, **placing: Any
) -> Policy:
    """Load the model and its tokenizer from a hub id or a folder.

    Args:
        config: the model's settings.
        data: how problems become prompts.
        source: hub id or folder.
        adapter: folder of trained LoRA weights; None = new ones, if LoRA is set.
        **placing: `device` and `hollow` of `load_model`.

    Raises:
        ConfigError: there is no causal language model with a tokenizer.
    """
    tokenizer = load_tokenizer(config, source)
    chat = chat_of(tokenizer, config, data, source)
    with _loading(source):
        model: Any = load_model(config, source, **placing)
    if config.lora is not None:
        model = with_adapters(model, config.lora, adapter)
    return Policy(model, tokenizer, source, chat, data.template, data.template_for_tests)


def policy_of(model: nn.Module, tokenizer: Any, config: ModelConfig, data: DataConfig) -> Policy:
    """A policy of a transformers model that is already in memory. Its dropout is switched off.

    Args:
        model: a causal language model with float32 weights.
        tokenizer: its tokenizer.
        config: the model's settings; `lora` adds adapters when the run begins.
        data: how problems become prompts.

    Raises:
        ConfigError: weights that are not float32, or a chat template that is required and missing.
    """
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()} - {"float32"})
    if kinds:
        raise ConfigError(
            f"the model has {', '.join(kinds)} weights; expected float32. Load it with "
            "dtype=torch.float32; model.dtype=bfloat16 sets the arithmetic of forward passes"
        )
    _no_dropout(model)
    source = str(getattr(model.config, "name_or_path", ""))
    chat = chat_of(tokenizer, config, data, source)
    return Policy(model, tokenizer, source, chat, data.template, data.template_for_tests)


def load_tokenizer(config: ModelConfig, source: str) -> Any:
    """The tokenizer of a hub id or folder.

    Raises:
        ConfigError: no tokenizer there.
    """
    from transformers import AutoTokenizer

    with _loading(source):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=config.trust_remote_code)


def chat_of(tokenizer: Any, config: ModelConfig, data: DataConfig, source: str) -> Chat | None:
    """How prompts go through the tokenizer's chat template; None if they do not.

    Raises:
        ConfigError: the settings need a chat template and the tokenizer has none, or the template
            does not use a setting.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    wanted = bool(template) if config.chat_template == "auto" else config.chat_template
    if wanted and not template:
        raise ConfigError(
            f"model.chat_template is true, but the tokenizer of '{source}' has none. Use ",
            Setting("model.chat_template", False),
            ", or a chat model",
        )
    chat = Chat(data.system, config.chat_template_kwargs)
    if wanted and not _ends(lambda: chat.applied(tokenizer, "1 + 1 = ?")):
        raise ConfigError(
            f"the chat template of '{source}' takes more than {_SECONDS} seconds or {_MEMORY >> 30}"
            " GiB for one prompt. Use another model, or ",
            Setting("model.chat_template", False),
        )
    unused = [
        f"model.chat_template_kwargs.{name}" for name in chat.arguments if name not in template
    ]
    if chat.system is not None and wanted:
        try:
            used = chat.system.strip() in chat.applied(tokenizer, "")
        except ConfigError:  # some templates refuse the role
            used = False
        unused += ["data.system"] * (not used)
    elif not wanted and chat != Chat():
        raise ConfigError(
            "data.system and model.chat_template_kwargs need a chat template, and the prompts of "
            f"'{source}' go through none. Leave them out; data.template is the text around a prompt"
        )
    if unused:
        names = ", ".join(unused)
        raise ConfigError(f"the chat template of '{source}' does not use {names}. Leave it out")
    return chat if wanted else None


def _ends(call: Callable[[], Any]) -> bool:
    """Whether a call ends in bounded time and memory, tried in a copy of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other threads, which the copy does not have
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS)
        limit = peak_memory() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        call()
    except BaseException as error:  # any other is raised again where the call is needed
        os._exit(isinstance(error.__cause__ or error, MemoryError))
    os._exit(0)


@contextlib.contextmanager
def _loading(source: str) -> Iterator[None]:
    """Raise a library's error about a model that it cannot load as a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # of many libraries, about any of the files
        why: Any = error
        if isinstance(error, pickle.UnpicklingError):
            why = "its weights are a pickle that is damaged or would run code"
        elif (damage := _damage(Path(source))) is not None:
            why = f"{damage}: {error}"
        raise ConfigError(
            f"cannot load the model '{source}': {why}\nExpected a folder written by "
            "save_pretrained, with its tokenizer, or the id of a model on the hub."
        ) from error


def _damage(folder: Path) -> str | None:
    """What is wrong with a file of a model's folder, whose name the libraries do not tell."""
    from safetensors import SafetensorError, safe_open

    with contextlib.suppress(OSError, ValueError):
        if not isinstance(parse_json(read_whole(folder / "config.json")), dict):
            return "its config.json is no JSON object"
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError):
            return f"{file} is damaged"
    return None


def arithmetic(config: ModelConfig) -> torch.dtype | None:
    """The arithmetic of forward passes in training and sampling; None = the weights' float32."""
    half = config.dtype == "bfloat16" or (config.dtype == "auto" and torch.cuda.is_available())
    return torch.bfloat16 if half else None


def prompt_limit(config: RunConfig, model: Any, *, configured: bool = True) -> int | None:
    """Tokens that a prompt may have: as configured, and at most what the model's context leaves.

    Raises:
        ConfigError: it leaves none.
    """
    most = config.data.max_prompt_tokens if configured else None
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return most
    longest = config.sampling.max_tokens
    if longest >= context:
        raise ConfigError(
            f"sampling.max_tokens={longest} leaves no room for a prompt: the model's context is "
            f"{context} tokens. Expected less than {context}"
        )
    return min(most or context, context - longest)


def tokenizer_difference(ours: Any, theirs: Any, end: int | None) -> str | None:
    """Describe why a teacher cannot read the policy's token ids; None if it can.

    Each id of the policy must have the same text in the teacher's vocabulary. Further ids of the
    teacher do not matter, because the policy never draws them. Neither does the size of the heads,
    which is often padded.

    Args:
        ours: the policy's tokenizer, of transformers.
        theirs: the teacher's tokenizer.
        end: the teacher's token that stands for the policy's end token; None = the same token.

    Returns:
        The first id that differs with both texts, or the setting `scores.NAME.end` to change.
    """
    here, there = ({index: text for text, index in x.get_vocab().items()} for x in (ours, theirs))
    for index in sorted(here):
        if here[index] != there.get(index):
            return (
                f"id {index} is {here[index]!r} in the policy's tokenizer and {there.get(index)!r} "
                "in the teacher's. Use a teacher with the policy's tokenizer"
            )
    own, other = ours.eos_token_id, theirs.eos_token_id
    if end is None and own != other:
        return (
            f"the policy ends a response with id {own} ({ours.eos_token!r}), and the teacher with "
            f"id {other} ({theirs.eos_token!r}): set scores.NAME.end={other}"
        )
    if end is not None and end not in there:
        return f"scores.NAME.end={end} is no token of the teacher; it ends with id {other}"
    return None


def with_end(response: Sequence[int], ours: int | None, end: int | None) -> Sequence[int]:
    """Return response ids with the teacher's end token in place of the policy's.

    Args:
        response: token ids that the policy drew.
        ours: the policy's end token.
        end: the teacher's; None = the response stays as it is.
    """
    if end is None:
        return response
    tokens = [end if token == ours else token for token in response]
    return Interleaved(tokens, response.gaps) if isinstance(response, Interleaved) else tokens


def score_dtype(score: ScoreConfig) -> torch.dtype:
    """The dtype of the weights of a frozen model; the reference has the policy's, float32."""
    usual = torch.cuda.is_available() and not score.required
    half = score.dtype == "bfloat16" or (score.dtype == "auto" and usual)
    return torch.bfloat16 if half else torch.float32


def frozen(model: Any, score: ScoreConfig, device: Any) -> Any:
    """The model of a score on its device, with weights in its dtype, never trained.

    Buffers keep their dtype: in bfloat16, rotary frequencies would turn late tokens wrongly.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, score_dtype(score))
    return model.to(device).eval().requires_grad_(False)


def load_score(
    name: str, score: ScoreConfig, config: ModelConfig, tokenizer: Any, **placing: Any
) -> Any:
    """The model of a score that is another one than the policy.

    Args:
        name: of the score.
        score: its settings.
        config: the policy's settings.
        tokenizer: the policy's.
        **placing: settings of `load_model`.

    Raises:
        ConfigError: it cannot be loaded, is not what it was when the run began, or reads other
            tokens than the policy, whose tokenizer is given.
    """
    source = score_folder(name, score)
    setting = f"scores.{name}.{'run' if score.run else 'model'}"
    with reported(ConfigError, setting, ConfigError):
        theirs = load_tokenizer(config, source)
    if difference := tokenizer_difference(tokenizer, theirs, score.end):
        raise ConfigError(f"scores.{name}: {difference}".replace("scores.NAME", f"scores.{name}"))
    with reported(ConfigError, setting, ConfigError), _loading(source):
        model: Any = load_model(config, source, **placing)
    rows, ids = model.get_input_embeddings().weight.shape[0], max(tokenizer.get_vocab().values())
    if rows <= ids:
        raise ConfigError(
            f"scores.{name}: the model has {rows} embeddings, and the policy's tokenizer ids up to "
            f"{ids}. Use a teacher with the policy's tokenizer"
        )
    return model


def load_model(
    config: ModelConfig,
    source: str,
    *,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    hollow: bool = False,
) -> nn.Module:
    """The model without its tokenizer and without dropout: on-policy ratios are 1.

    Args:
        config: the model's settings.
        source: hub id or folder.
        device: of the model.
        dtype: of its weights; buffers keep their own.
        hollow: the weights stay in their files, if they can be read from there; see `loading`.

    Raises:
        ConfigError: its files lack a tensor, or have one of another shape.
    """
    from transformers import AutoModelForCausalLM

    model: Any = None
    if hollow or torch.device(device).type != "cpu":
        model = hollow_model(config, source, dtype, device)
    if model is None:
        with no_bars() if Path(source).is_dir() else contextlib.nullcontext():
            model = load_complete(
                AutoModelForCausalLM,
                source,
                dtype=torch.float32,
                trust_remote_code=config.trust_remote_code,
            )
        for parameter in model.parameters():
            parameter.data = parameter.data.to(device, dtype)
        model.to(device)
    if not hollow:
        for _ in filled(model.parameters()):
            pass
    _no_dropout(model)
    return model


def _no_dropout(model: nn.Module) -> None:
    """Set all dropout rates to 0: those of modules, and those that modules pass to functions."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, rate in vars(module).items():
            if "drop" in name and isinstance(rate, float):
                setattr(module, name, 0.0)


def vllm_sampler(
    config: RunConfig, source: str, tokenizer: Any, model: Any, **client: Any
) -> VllmSampler | VllmServerSampler:
    """The sampler of `sampling.engine`, in this process or a client of a server.

    Args:
        config: the settings.
        source: folder or hub id of the model.
        tokenizer: the model's.
        model: has the model's `config` and `generation_config`.
        client: `primary` and `holder` of `VllmServerSampler`.

    Raises:
        MissingExtra: a package is not installed.
        ConfigError: vLLM refuses the settings, or the server holds another model.
    """
    eos, settings = eos_ids(model, tokenizer), config.sampling
    if settings.engine == "vllm":
        return VllmSampler(
            source,
            tokenizer,
            eos=eos,
            settings=settings.vllm,
            dtype=arithmetic(config.model) or torch.float32,
            trust_remote_code=config.model.trust_remote_code,
        )
    return VllmServerSampler(
        settings.server, tokenizer, eos=eos, model_config=model.config, **client
    )
