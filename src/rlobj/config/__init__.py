"""The configuration of a run: presets, layers of settings, and the RunConfig that they make.

presets             a published objective as a YAML file: a partial RunConfig
layers              what a preset, a file and single settings say, and in which order they count
embedded_profile    the settings that fit a run to the embedded policy
run_config          RunConfig, every setting with its default, and how layers become one
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlobj.base.lazy import load

if TYPE_CHECKING:
    from rlobj.config.presets import Preset, load_preset, preset_names
    from rlobj.config.run_config import RunConfig, compose

__all__ = ["Preset", "RunConfig", "compose", "load_preset", "preset_names"]

_HOMES = {
    "Preset": "rlobj.config.presets",
    "RunConfig": "rlobj.config.run_config",
    "compose": "rlobj.config.run_config",
    "load_preset": "rlobj.config.presets",
    "preset_names": "rlobj.config.presets",
}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
