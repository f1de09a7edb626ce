"""GRPOTrainer of TRL with an objective of rlobj.

    from rlobj.integrations.trl import ObjectiveTrainer

    trainer = ObjectiveTrainer(model, reward, args=config, train_dataset=data, objective="stapo")

Raises:
    MissingExtra: TRL is not installed.
    ConfigError: a version of TRL that was not tested is installed.
"""

from rlobj.base.errors import MissingExtra
from rlobj.installation import check_version, installed_version

if (_version := installed_version("trl")) is None:
    raise MissingExtra("trl", "trl", "rlobj.integrations.trl")
check_version("trl", _version, ">=1.13,<1.17")  # before the first import from trl

from rlobj.integrations.trl.trainer import ObjectiveMixin, ObjectiveTrainer  # noqa: E402

__all__ = ["ObjectiveMixin", "ObjectiveTrainer"]
