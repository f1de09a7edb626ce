"""Keep the definition, the loss and the gradient of presets in presets.json.

    python tests/objectives/golden/keep.py NAME ...

The numbers are those of the preset itself, so that a later change is seen. Whether they are right
is what a loop over tokens (`LOOPS` of test_autumn_presets.py) or released code says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parents[1])]

from test_golden import EVERY, ROLLOUTS, numbers_of  # noqa: E402

from rlobj import load_preset  # noqa: E402

for name in sys.argv[1:]:
    objective, numbers = load_preset(name).objective, {}
    for kind in ROLLOUTS:
        loss, (by_logprobs, by_entropies) = numbers_of(objective, kind)
        numbers[kind] = {"loss": loss.item(), "gradient": by_logprobs.tolist()}
        if by_entropies.any():
            numbers[kind]["entropy_gradient"] = by_entropies.tolist()
    definition = objective.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    EVERY["presets"][name] = {"definition": definition, "numbers": numbers}
EVERY["presets"] = dict(sorted(EVERY["presets"].items()))
(FOLDER / "presets.json").write_text(json.dumps(EVERY, separators=(",", ":")))
