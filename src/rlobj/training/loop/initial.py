"""The policy before training, as it is trained, and in frozen copies."""

import copy
import functools
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlobj.base.errors import ConfigError, Setting, reported
from rlobj.models.adapters import with_adapters
from rlobj.models.embedded import embedded_policy
from rlobj.models.gguf_files import dense_folder
from rlobj.models.hollow import filled, is_hollow
from rlobj.models.loading import load_model
from rlobj.models.location import gguf_digest
from rlobj.models.policy import Policy, load_policy, policy_of, prompt_limit
from rlobj.models.scores import load_score, score_dtype
from rlobj.models.values import read_trained, value_class, value_model
from rlobj.scoring.value_scorer import value_head
from rlobj.settings.profiles import embedded_task
from rlobj.settings.run_config import RunConfig
from rlobj.training.parallel import Parallel


class InitialPolicy:
    """Makes the trained policy, and frozen copies of the model as it was before training.

    Args:
        config: the run.
        inputs: the caller's model.
        parallel: the processes.
        stack: removes temporary files when the run ends.

    """

    def __init__(
        self, config: RunConfig, inputs: Any, parallel: Parallel, stack: ExitStack
    ) -> None:
        self._config = config
        self._device, self._shards = parallel.device, parallel.shards
        self._original, self._passed = inputs.passed("model"), None
        if self._original is None:
            return
        passed = policy_of(self._original, inputs.tokenizer, config.model, config.data)
        self._passed, self.source = passed, passed.source
        if config.sampling.engine == "vllm":  # vLLM loads from a folder
            self.source = stack.enter_context(tempfile.TemporaryDirectory(prefix="rlobj-policy-"))
            passed.model.save_pretrained(self.source)
            passed.tokenizer.save_pretrained(self.source)

    @functools.cached_property
    def source(self) -> str:
        """Folder or hub id of the model. A run that is resumed may do without.

        Raises:
            ConfigError: it is a GGUF file that has changed since the run began, or is gone.
        """
        if self._config.model.name is None:
            return str(embedded_policy(embedded_task(self._config.data.source)))
        gguf_digest(self._config.model)
        return dense_folder(str(self._config.model.name))

    def frozen(self, *, dtype: torch.dtype = torch.float32, hollow: bool = False) -> Any:
        """A copy of the model before training, on the device, that is never trained.

        Args:
            dtype: as in `load_model`.
            hollow: as in `load_model`.
        """
        if self._original is None:
            model: Any = load_model(
                self._config.model, self.source, device=self._device, dtype=dtype, hollow=hollow
            )
        else:
            model = copy.deepcopy(self._original)
        return model.to(self._device).eval().requires_grad_(False)

    def trained(self, checkpoint: Path | None) -> Policy:
        """The policy to train, on the device: with the weights of a checkpoint if there is one.

        If ranks store shards, the weights may still be in their files.
        """
        config, lora = self._config, self._config.model.lora
        adapter = checkpoint / "adapter" if checkpoint and lora else None
        weights = str(checkpoint / "model") if checkpoint and not lora else None
        if self._passed is None:
            policy = load_policy(
                config.model,
                config.data,
                weights or self.source,
                adapter,
                device=self._device,
                hollow=self._shards,
            )
        else:
            policy = self._passed
            if weights is not None:
                self._original = copy.deepcopy(policy.model)
                policy.model.load_state_dict(load_model(config.model, weights).state_dict())
            elif self._shards or (lora and config.critic):  # made in the model that was passed
                self._original = copy.deepcopy(policy.model)
            if lora is not None:
                policy = replace(policy, model=with_adapters(policy.model, lora, adapter))
        self._begin(policy.model)
        return policy

    def of_score(self, name: str, score: Any, policy: Policy) -> Any:
        """The model that a score begins with: the policy's before training, or another one.

        Raises:
            ConfigError: it cannot be loaded, or cannot read what the policy reads.
        """
        config, hollow = self._config, self._shards
        if score.required or score.is_policy:
            model = self.frozen(dtype=score_dtype(score), hollow=hollow)
        else:
            tokenizer, device = policy.tokenizer, self._device
            model = load_score(name, score, config.model, tokenizer, device=device, hollow=hollow)
        with reported(ConfigError, f"scores.{name}", ConfigError):
            limit, other = (prompt_limit(config, m.config) for m in (policy.model, model))
            if other is not None and (limit is None or other < limit):
                raise ConfigError(
                    f"its context leaves {other} tokens for a prompt, and the policy's more. Use ",
                    Setting("data.max_prompt_tokens", other),
                )
        return model

    def value(self, policy: Policy, checkpoint: Path | None) -> Policy:
        """The policy with the model of the value to train in place of its own, on the device: with
        the weights of a checkpoint if there is one.

        Raises:
            ConfigError: as `of_score`, or the model takes no head.
        """
        name, settings = str(self._config.objective.critic), self._config.critic
        assert settings is not None
        folder = checkpoint and checkpoint / "scores" / name
        config, source = self._config.model, str(folder)
        if folder and settings.lora is None:
            kind, hollow = value_class(source), self._shards
            model: Any = load_model(config, source, device=self._device, hollow=hollow, kind=kind)
        else:
            model = self.of_score(name, settings, policy)
        with reported(ConfigError, f"scores.{name}", ConfigError):
            model = value_model(model)
            head = value_head(model)
        if settings.lora is not None:
            with_adapters(model.base_model, settings.lora, None, f"scores.{name}.lora")
            for parameter in filled(head.parameters()):
                parameter.requires_grad_(True)
            if folder:
                read_trained(folder / "adapter", model)
        self._begin(model)
        return replace(policy, model=model)

    def _begin(self, model: Any) -> None:
        """Put a model on the device, ready to be trained."""
        model.to(self._device).train()  # recomputing activations needs training mode
        for parameter in model.parameters():  # rounding depends on where a file is mapped
            if parameter.requires_grad and not is_hollow(parameter):
                parameter.data = parameter.data.clone()
        if self._config.training.gradient_checkpointing:
            newer = getattr(model, "activation_checkpointing_enable", None)
            (newer or model.gradient_checkpointing_enable)()
