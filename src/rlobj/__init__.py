"""rlobj: composable policy-optimization objectives for RL of language models.

A batch is a table with one row per trained token. An objective is data: expressions over that
table's columns, a surrogate and a divisor.

    >>> from rlobj import Clip, Objective, advantage, entropy, prob
    >>> dapo = Objective(surrogate=Clip(low=0.2, high=0.28))
    >>> stapo = dapo.drop((advantage > 0) & (prob < 0.002) & entropy.bottom(0.8))

Every public name is importable from here. A name is loaded when it is first used, so that
`import rlobj` itself loads no other package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlobj.base.lazy import names_of

if TYPE_CHECKING:
    from rlobj.base.errors import *
    from rlobj.config.presets import Preset, load_preset
    from rlobj.config.run_config import RunConfig
    from rlobj.evaluation.evaluating import evaluate
    from rlobj.evaluation.result import EvaluationCallback, EvaluationResult
    from rlobj.insight.diagnosis import Diagnosis, diagnose
    from rlobj.insight.inspecting import Inspection, inspect
    from rlobj.insight.page.writing import write_inspection_page
    from rlobj.insight.replaying import Replay, replay
    from rlobj.insight.run_report import report
    from rlobj.objectives import functional
    from rlobj.objectives.advantages import *
    from rlobj.objectives.controllers import *
    from rlobj.objectives.divisors import *
    from rlobj.objectives.mismatch import *
    from rlobj.objectives.objective import Objective
    from rlobj.objectives.penalties import *
    from rlobj.objectives.plan import LossOutput, Plan
    from rlobj.objectives.rules import CustomRule, Expr, parse
    from rlobj.objectives.rules.operators import *
    from rlobj.objectives.surrogates import *
    from rlobj.objectives.tokens import TokenBatch
    from rlobj.ranks import ProcessGroup
    from rlobj.records.reading import read_records
    from rlobj.records.tables import UpdateTable, read_tables
    from rlobj.rewards import MathVerifier
    from rlobj.samplers import Sampler
    from rlobj.scoring import score_tokens
    from rlobj.training.loop.clock import Callback
    from rlobj.training.run import resume, train

__version__ = "0.1.0"

_NAMES = {
    "base.errors": "BatchError ConfigError DataError MissingExtra RlobjError RunError",
    "config.presets": "Preset load_preset",
    "config.run_config": "RunConfig",
    "evaluation.result": "EvaluationCallback EvaluationResult",
    "evaluation.evaluating": "evaluate",
    "insight.inspecting": "Inspection inspect",
    "insight.page.writing": "write_inspection_page",
    "insight.diagnosis": "Diagnosis diagnose",
    "insight.replaying": "Replay replay",
    "insight.run_report": "report",
    "objectives.advantages": "AccurateGroupCentered Advantage BatchWhitened Decoupled "
    "GroupCentered GroupCenteredBatchWhitened GroupNormalized LeaveOneOut LengthWeighted "
    "MaximumLikelihood ExpectedPassAtK PassAtK QuantileBaseline",
    "objectives.controllers": "AdaptiveGate Controller Gate",
    "objectives.divisors": "Divisor FixedLength PromptMean SequenceMean SequenceSum TokenMean",
    "objectives.functional": "functional",
    "objectives.mismatch": "Mask Mismatch Truncate",
    "objectives.objective": "Objective",
    "objectives.penalties": "KL EntropyBonus NegativeLogLikelihood Penalty ProxyKL",
    "objectives.plan": "LossOutput Plan",
    "objectives.rules": "CustomRule Expr parse",
    "objectives.rules.operators": "advantage clip collision column covariance entropy exp "
    "gradient_norm length log logprob maximum minimum "
    "old_collision old_entropy old_logprob old_prob "
    "old_surprisal position prob proxy_gap ratio ref_gap reward "
    "sampler_gap sign sqrt surprisal when",
    "objectives.surrogates": "Cispo Clip DppoTv GeometricMean Reinforce SoftGate Surrogate Switch "
    "Unclipped Vespo",
    "objectives.tokens": "TokenBatch",
    "ranks": "ProcessGroup",
    "records.reading": "read_records",
    "records.tables": "UpdateTable read_tables",
    "rewards": "MathVerifier",
    "samplers": "Sampler",
    "scoring": "score_tokens",
    "training.loop.clock": "Callback",
    "training.run": "resume train",
}
__getattr__, _public = names_of(__name__, _NAMES)
__all__ = ["__version__", *_public]  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return __all__
