"""rlobj's objectives inside verl, as a plugin that verl loads by itself.

    python -m verl.trainer.main_ppo ... \\
        actor_rollout_ref.actor.policy_loss.loss_mode=rlobj +actor_rollout_ref.rlobj=stapo

`import verl` loads every entry point of the group `verl.plugins`, this module among them. It does
nothing unless `loss_mode` is `rlobj`. It makes three changes:

- verl's check of the configuration, which runs before Ray starts, also calls `settings.check`;
- the actor's training worker becomes `worker.ObjectiveWorker`, which plans each update;
- `rlobj` is a registered policy loss. It only says that the plan is missing, because the worker
  computes the loss: a trainer without this worker stops, and never trains with another loss.

If verl says `Unsupported loss mode: rlobj`, the plugin could not be loaded; verl hides the reason.
`python -c "import rlobj.integrations.verl"` shows it.
"""

from __future__ import annotations

# pyright: reportMissingImports=false
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from rlobj.base.errors import MissingExtra, RunError

try:
    import verl.utils.config as verl_config
    from verl.trainer.ppo.core_algos import register_policy_loss
    from verl.workers.engine_workers import ActorRolloutRefWorker
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "verl":
        raise
    raise MissingExtra("verl", "verl", "rlobj.integrations.verl") from None

from rlobj.integrations.verl.settings import LOSS_MODE, check, read_settings
from rlobj.integrations.verl.worker import ObjectiveWorker


@register_policy_loss(LOSS_MODE)
def unplanned_loss(**_: Any) -> Any:
    """Refuse to compute a loss without a plan.

    Raises:
        RunError: always.
    """
    raise RunError(
        "verl asks for the policy loss 'rlobj' outside of rlobj's training worker, so the update "
        "has no plan. Another training worker, or a subclass of ActorRolloutRefWorker with its own "
        "actor_worker_cls, is in use; rlobj needs verl's own, with strategy=fsdp or fsdp2"
    )


def _checked(validate: Callable[..., None]) -> Callable[..., None]:
    """verl's check of the configuration, after rlobj's."""

    @wraps(validate)
    def validate_config(config: Any, *args: Any, **kwargs: Any) -> None:
        check(config)
        validate(config, *args, **kwargs)

    return validate_config


def _worker(usual: type) -> property:
    """The class of the actor's training worker: rlobj's if `loss_mode` asks for it."""

    def actor_worker_cls(worker: Any) -> Callable[..., Any]:
        if worker.config.actor.policy_loss.loss_mode != LOSS_MODE:
            return usual
        settings = read_settings(worker.config)
        # Decoupled PPO scores a rollout with older weights, which it restores.
        restores = hasattr(worker, "restore_model_from_cpu")
        return partial(ObjectiveWorker, settings=settings, on_policy=not restores)

    return property(actor_worker_cls)


verl_config.validate_config = _checked(verl_config.validate_config)
ActorRolloutRefWorker.actor_worker_cls = _worker(ActorRolloutRefWorker.actor_worker_cls)
