"""The policy before training: a model folder, a hub id, or a model that the caller hands in."""

from __future__ import annotations

import copy
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlobj.config.run_config import RunConfig
from rlobj.models import lora
from rlobj.models.policy import Policy, load_model, load_policy

__all__ = ["InitialPolicy"]


class InitialPolicy:
    """Makes the trained policy, and frozen copies of the model as it was before training.

    Args:
        config: the run.
        device: where the models go.
        source: folder or hub id; not read if a policy is given.
        given: the caller's policy, or None.
        stack: removes temporary files when the run ends.
    """

    def __init__(
        self,
        config: RunConfig,
        device: torch.device,
        source: str,
        given: Policy | None,
        stack: ExitStack,
    ) -> None:
        self._config = config
        self._device = device
        self._source = source
        self._given = given
        self._original = None if given is None else given.model
        if given is not None and config.sampling.engine == "vllm":  # vLLM loads from a folder
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rlobj-policy-"))
            given.model.save_pretrained(folder)
            given.tokenizer.save_pretrained(folder)
            self._source = folder

    @property
    def source(self) -> str:
        """Folder or hub id."""
        return self._source

    def frozen(self) -> Any:
        """A copy of the model before training, on the device, that is never trained."""
        if self._original is not None:
            model = copy.deepcopy(self._original)
        else:
            model = load_model(self._config.model, self._source)
        return model.to(self._device).eval().requires_grad_(False)

    def trained(self, checkpoint: Path | None) -> Policy:
        """The policy to train, on the device: with the weights of a checkpoint if there is one."""
        config = self._config
        adapter = (
            None if checkpoint is None or config.model.lora is None else checkpoint / "adapter"
        )
        weights = None if checkpoint is None or adapter is not None else checkpoint / "model"
        if self._given is None:
            source = self._source if weights is None else str(weights)
            policy = load_policy(config.model, config.data, source, adapter)
        else:
            policy = self._given
            if weights is not None:
                self._original = copy.deepcopy(policy.model)
                policy.model.load_state_dict(load_model(config.model, str(weights)).state_dict())
            if config.model.lora is not None:
                model = lora.adapted(policy.model, config.model.lora, adapter)
                policy = replace(policy, model=model)
        policy.model.to(self._device).train()  # recomputing activations needs training mode
        if config.training.gradient_checkpointing:
            policy.recompute_activations()
        return policy
