"""The policy before training: a model folder, a hub id, or a model that the caller hands in."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlobj.config.run_config import RunConfig
from rlobj.models import lora
from rlobj.models.policy import Policy, load_model, load_policy
from rlobj.objectives.objective import Objective
from rlobj.scoring import PolicyScorer
from rlobj.training.loop.callbacks import Callback
from rlobj.training.parallel import Parallel
from rlobj.training.parallel.agreement import together


class InitialPolicy:
    """Makes the trained policy, and frozen copies of the model as it was before training.

    Args:
        config: the run.
        given: the caller's policy, or None.
        parallel: the processes.
        callbacks: their `warm_starting` is called while the embedded policy is made.
        stack: removes temporary files when the run ends.

    Attributes:
        source: folder or hub id of the model.
    """

    def __init__(
        self,
        config: RunConfig,
        given: Policy | None,
        parallel: Parallel,
        callbacks: Sequence[Callback],
        stack: ExitStack,
    ) -> None:
        self._config = config
        self._given = given
        self._device = parallel.device
        self._original: Any = None if given is None else given.model
        if given is None:
            self.source = config.model.name or _make_embedded(config, parallel, callbacks)
            return
        self.source = given.source
        if config.sampling.engine == "vllm":  # vLLM loads from a folder
            self.source = stack.enter_context(tempfile.TemporaryDirectory(prefix="rlobj-policy-"))
            given.model.save_pretrained(self.source)
            given.tokenizer.save_pretrained(self.source)

    def frozen(self) -> Any:
        """A copy of the model before training, on the device, that is never trained."""
        if self._original is None:
            model: Any = load_model(self._config.model, self.source)
        else:
            model = copy.deepcopy(self._original)
        return model.to(self._device).eval().requires_grad_(False)

    def reference(self, objective: Objective) -> PolicyScorer | None:
        """The scorer of the reference policy; None if the objective reads none.

        With LoRA there is none either: the policy without its adapters is the reference.
        """
        read = "ref_logprobs" in objective.needs.ever
        if not read or self._config.model.lora is not None:
            return None
        return PolicyScorer(self.frozen(), self._config.training.packed)

    def trained(self, checkpoint: Path | None) -> Policy:
        """The policy to train, on the device: with the weights of a checkpoint if there is one."""
        config = self._config
        adapter = weights = None
        if checkpoint is not None and config.model.lora is not None:
            adapter = checkpoint / "adapter"
        elif checkpoint is not None:
            weights = str(checkpoint / "model")
        if self._given is None:
            policy = load_policy(config.model, config.data, weights or self.source, adapter)
        else:
            policy = self._given
            if weights is not None:
                self._original = copy.deepcopy(policy.model)
                policy.model.load_state_dict(load_model(config.model, weights).state_dict())
            if config.model.lora is not None:
                model = lora.adapted(policy.model, config.model.lora, adapter)
                policy = replace(policy, model=model)
        policy.model.to(self._device).train()  # recomputing activations needs training mode
        if config.training.gradient_checkpointing:
            policy.recompute_activations()
        return policy


def _make_embedded(config: RunConfig, parallel: Parallel, callbacks: Sequence[Callback]) -> str:
    """The folder of the embedded policy. On first use one process of each machine makes it."""
    from rlobj.config.embedded_profile import OWN_PROBLEMS_TASK, PROFILES
    from rlobj.models.embedded import embedded_policy

    def progress(done: int, total: int, loss: float) -> None:
        for callback in callbacks:
            callback.warm_starting(done, total, loss)

    task = str(config.data.source)
    task, folder = task if task in PROFILES else OWN_PROBLEMS_TASK, ""
    for first in (True, False):
        with together(parallel.comm, "making the embedded policy"):
            if first == parallel.accelerator.is_local_main_process:
                folder = str(embedded_policy(task, progress=progress))
    return folder
