"""The names of the findings of a diagnosis, which `training.stop_on` may list."""

from __future__ import annotations

from typing import Literal

FindingName = Literal[
    "collapse",
    "groups-without-signal",
    "entropy-falling",
    "entropy-exploding",
    "ratio-spike",
    "gradient-spike",
    "learning-rate-too-high",
    "rule-never-fires",
    "rule-fires-on-everything",
    "inert-setting",
    "sampler-drift",
    "truncation",
    "length-growth",
    "verifier-trouble",
    "wrong-group-size",
]
