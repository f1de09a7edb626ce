"""rlobj's objectives inside verl, as a plugin that verl loads by itself.

    python -m verl.trainer.main_ppo ... \\
        actor_rollout_ref.actor.policy_loss.loss_mode=rlobj +actor_rollout_ref.rlobj=stapo

`import verl` loads every entry point of the group `verl.plugins`, this module among them. It
imports nothing of verl, torch or rlobj's objectives. It changes four modules of verl when they are
imported; the changes do nothing unless `loss_mode` is `rlobj`:

- verl's check of the configuration, which runs before Ray starts, also calls `settings.check`;
- the actor's training worker becomes `worker.ObjectiveWorker`, which plans each update;
- the trainer tells that worker what only its keys and tags say: which responses of a batch are
  synthetic, and the order of a session's responses;
- `rlobj` is a registered policy loss. It only says that the plan is missing, because the worker
  computes the loss: a trainer without this worker stops, and never trains with another loss.
"""

import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from typing import Any

from rlobj.base.errors import MissingExtra, RunError
from rlobj.installation import installed_version
from rlobj.integrations.verl.names import LOSS_MODE, PADDING

if installed_version("verl") is None:
    raise MissingExtra("verl", "verl", "rlobj.integrations.verl")


def _config(module: Any) -> None:
    """Let verl's check of the configuration call rlobj's first."""
    validate = module.validate_config

    @wraps(validate)
    def validate_config(config: Any, *args: Any, **kwargs: Any) -> None:
        actor = config.actor_rollout_ref
        if actor.actor.policy_loss.loss_mode == LOSS_MODE or actor.get("rlobj") is not None:
            from rlobj.integrations.verl.settings import check

            check(config)
        validate(config, *args, **kwargs)

    module.validate_config = validate_config


def _losses(module: Any) -> None:
    """Register a policy loss that refuses to compute a loss without a plan."""

    @module.register_policy_loss(LOSS_MODE)
    def unplanned_loss(**_: Any) -> Any:
        expected = "expected verl's own ActorRolloutRefWorker, with strategy=fsdp2"
        raise RunError(f"the update has no plan: {expected}")


def _workers(module: Any) -> None:
    """Make rlobj's training worker that of the actor, if `loss_mode` asks for it."""
    usual = module.ActorRolloutRefWorker.actor_worker_cls

    def actor_worker_cls(worker: Any) -> Callable[..., Any]:
        if worker.config.actor.policy_loss.loss_mode != LOSS_MODE:
            return usual
        from rlobj.integrations.verl.settings import read_settings
        from rlobj.integrations.verl.worker import ObjectiveWorker

        settings = read_settings(worker.config)
        # Decoupled PPO scores a rollout with older weights, which it restores.
        restores = hasattr(worker, "restore_model_from_cpu")
        return partial(ObjectiveWorker, settings=settings, on_policy=not restores)

    module.ActorRolloutRefWorker.actor_worker_cls = property(actor_worker_cls)


def _trainers(module: Any) -> None:
    """Hand what keys and tags say of responses over to rlobj's worker."""
    update = module.PPOTrainer._update_actor

    @wraps(update)
    def _update_actor(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if self.config.actor_rollout_ref.actor.policy_loss.loss_mode == LOSS_MODE:
            from rlobj.integrations.verl.tables import name_rows

            name_rows(batch, module.tq)
            rows = zip(batch.keys, batch.tags, strict=True)
            uids = {key.rsplit("_", 2)[0] for key, tag in rows if tag.get("is_padding")}
            batch.extra_info[PADDING] = ",".join(sorted(uids))
        return update(self, batch, *args, **kwargs)

    module.PPOTrainer._update_actor = _update_actor


_CHANGES = {
    "verl.utils.config": _config,
    "verl.trainer.ppo.core_algos": _losses,
    "verl.trainer.ppo.v1.trainer_base": _trainers,
    "verl.workers.engine_workers": _workers,
}


class _Finder(MetaPathFinder):
    """Finds a module of `_CHANGES` as the other finders do, and changes it once it has run."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in _CHANGES:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        spec: Any = next((spec for spec in specs if spec is not None), None)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                _CHANGES[fullname](module)

            spec.loader.exec_module = exec_module
        return spec


for _name, _change in _CHANGES.items():
    if _name in sys.modules:
        _change(sys.modules[_name])
sys.meta_path.insert(0, _Finder())
