"""GRPOTrainer of TRL with an objective of rlobj.

    from rlobj.integrations.trl import ObjectiveTrainer

    trainer = ObjectiveTrainer(model, reward, args=config, train_dataset=data, objective="stapo")

Raises:
    MissingExtra: TRL is not installed.
    ConfigError: a version of TRL that was not tested is installed.
"""

from rlobj.integrations.trl.version import require_trl

require_trl()  # before the first import from trl

from rlobj.integrations.trl.trainer import ObjectiveMixin, ObjectiveTrainer  # noqa: E402

__all__ = ["ObjectiveMixin", "ObjectiveTrainer"]
