"""The section `scores:` of a run: policies and values that score the tokens of its rollouts."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlobj.base.addresses import Address
from rlobj.base.errors import ConfigError, Setting
from rlobj.base.validation import InvalidFields, Model

REQUIRED = "required"


class Lora(Model):
    """Train low-rank adapters instead of all weights (LoRA, Hu et al. 2021, arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1)
    """r, the rank of each update B·A"""
    alpha: float = Field(default=32.0, gt=0)
    """the update is alpha/r · B·A"""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """names of the linear layers that get an adapter"""


class ValueConfig(Model):
    """A value that is trained beside the policy: a backbone with a linear head of one number.

    Settings of `training` that it has none of its own for, such as betas, are the same for both.
    """

    run: ClassVar[None] = None
    server: ClassVar[None] = None
    prompt: ClassVar[None] = None
    required: ClassVar[bool] = False
    dtype: ClassVar[str] = "float32"

    value: Literal[True]
    """true: this score is a value, the expected reward after the context before a token"""
    model: str = "policy"
    """policy, a copy of the policy as it is before training; or hub id or folder of a model whose
    tokenizer is the policy's. A token classification model of one label keeps its head"""
    digest: str | None = None
    """of the model's folder or file; a new run writes it here, and when it resumes it wants the
    same one"""
    learning_rate: float = Field(default=1e-5, gt=0)
    """peak learning rate of its AdamW"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """learning rate after warm-up, as in `training`"""
    warmup_steps: int = Field(default=0, ge=0)
    """steps of linear warm-up of its learning rate"""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """its gradients are clipped to this norm"""
    value_warmup: int = Field(default=0, ge=0)
    """steps at the start in which it is trained and the policy is not"""
    updates: int = Field(default=1, ge=1)
    """its optimizer updates for each mini-batch"""
    range: tuple[float, float] | None = None
    """[lowest, highest] of V = lowest + (highest − lowest)·(½ + arctan(z)/π); null = V is z, the
    output of the head"""
    lora: Lora | None = None
    """train adapters on the backbone, and the head; null = train all weights"""

    @property
    def is_policy(self) -> bool:
        """Whether it starts from the policy's weights."""
        return self.model == "policy"

    @field_validator("range")
    @classmethod
    def _ascends(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and bounds[0] >= bounds[1]:
            raise ConfigError(f"expected [lowest, highest], got {[*bounds]}")
        return bounds


class ScoreConfig(Model):
    """A policy that scores the tokens of each rollout once, when the run trains on it."""

    model: str | None = None
    """hub id, folder or GGUF file of a frozen model; or policy, the policy in training"""
    run: str | None = None
    """run whose checkpoint is the frozen model"""
    checkpoint: str | None = Field(default=None, coerce_numbers_to_str=True)
    """the run's checkpoint, newest, best or a step (null = newest); a new run writes the step
    here"""
    digest: str | None = None
    """of the checkpoint, or of the model's folder or file; a new run writes it here, and when it
    resumes it wants the same one"""
    server: Address | None = None
    """address of a server of `rlobj serve` or `vllm serve` with the frozen model; it gives no
    entropy"""
    prompt: str | None = None
    """Jinja template, or a file with one, of the question that this score sees instead:
    `{{ prompt }}`, `{{ answer }}` and the other columns of the problem, and `{{ feedback }}` of the
    reward; the response's tokens stay the same"""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """with `model: policy`: the score is a moving average of the policy's weights, which keeps this
    share of itself at the end of each step"""
    every: int | None = Field(default=None, ge=1)
    """with `model: policy`: the score is a copy of the policy, renewed after this many steps"""
    end: int | None = Field(default=None, ge=0)
    """id of the model's end token, if it is another one than the policy's"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """weights of a frozen model (auto = bfloat16 on a GPU, else float32)"""

    @property
    def is_policy(self) -> bool:
        """Whether its weights are made from those in training."""
        return self.model == "policy"

    @property
    def required(self) -> bool:
        """Whether nothing says yet where its weights are."""
        return not (self.model or self.run or self.server)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        named = [name for name in ("model", "run", "server") if getattr(self, name)]
        lagged = self.ema is not None or self.every is not None
        checks = {
            named[-1] if named else "model": (
                len(named) > 1 and f"{' and '.join(named)} both name a model: give one"
            ),
            "checkpoint": self.checkpoint and not self.run and "belongs to run: RUN",
            "every": self.ema and self.every and "give ema or every, not both",
            "ema": lagged and not self.is_policy and "ema and every belong to model: policy",
            "prompt": (
                self.is_policy
                and not (lagged or self.prompt)
                and "the policy itself has a gap of 0: add prompt, ema or every"
            ),
        }
        if problems := [(name, str(text)) for name, text in checks.items() if text]:
            raise InvalidFields(problems)
        return self


def _named(entry: Any) -> Any:
    return {"model": entry} if isinstance(entry, str) else entry


class RoutedConfig(Model):
    """Several frozen models, such as the teachers of subjects: a column of the problems says which
    of them scores a response."""

    by: str
    """column of the problems whose value names the model; `source` is also the label of a problem's
    source, if the data has several"""
    models: dict[str, Annotated[ScoreConfig, BeforeValidator(_named)]] = Field(min_length=1)
    """model of each value of the column: its name, or the settings of a score without `by`"""

    is_policy: ClassVar[bool] = False
    required: ClassVar[bool] = False

    @model_validator(mode="after")
    def _frozen(self) -> Self:
        what = "expected a frozen model: model, run or server"
        moving = [key for key, score in self.models.items() if score.is_policy or score.required]
        if moving:
            raise InvalidFields([(f"models.{key}", what) for key in moving])
        return self

    def parts(self, name: str) -> dict[str, ScoreConfig]:
        """Its models by names of settings, `teacher.models.math`, where `name` is `teacher`."""
        return {f"{name}.models.{key}": score for key, score in self.models.items()}


def single_scores(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of one model, and each model of the others, by names of settings.

    Args:
        scores: settings by name.

    Returns:
        Settings by name: `teacher`, or `teacher.models.math` and so on.
    """
    single: dict[str, Any] = {}
    for name, score in scores.items():
        single |= score.parts(name) if isinstance(score, RoutedConfig) else {name: score}
    return single


def is_template(prompt: str) -> bool:
    """Whether a score's prompt is a template, and no file with one."""
    return "{{" in prompt or "{%" in prompt


def _read(value: Any) -> Any:
    """A value has `value: true`; `required` is a score whose model the run names."""
    if value == REQUIRED:
        return ScoreConfig()
    if isinstance(value, Model):
        return value
    if not isinstance(value, Mapping):
        expected = "expected a mapping of settings, as in {name: value}"
        raise ConfigError(f"{expected}, got {value!r}")
    if _is_value(value):
        return ValueConfig(**value)
    if value.get("kind") == REQUIRED:  # with settings above it
        value = {name: setting for name, setting in value.items() if name != "kind"}
    return RoutedConfig(**value) if "by" in value or "models" in value else ScoreConfig(**value)


def _is_value(entry: Any) -> bool:
    return isinstance(entry, ValueConfig) or (isinstance(entry, Mapping) and "value" in entry)


class _OrRequired:
    """In the JSON schema of a score: it may be `required`, too."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"const": REQUIRED}, handler(schema)]}


ScoreField = Annotated[
    ScoreConfig | ValueConfig | RoutedConfig, BeforeValidator(_read), _OrRequired()
]


def with_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """A partial RunConfig whose objective knows the names of the scores and of the columns."""
    filled = dict(config)
    for section in ("scores", "columns"):
        if isinstance(entries := config.get(section), Mapping):  # null removes one
            filled[section] = {name: entry for name, entry in entries.items() if entry is not None}
        names, objective = filled.get(section), filled.get("objective", {})
        if section == "scores" and isinstance(names, Mapping):  # a value belongs to the advantage
            names = {name: entry for name, entry in names.items() if not _is_value(entry)}
        knows_names = isinstance(objective, Mapping) or hasattr(objective, section)
        if not (names and isinstance(names, Mapping) and knows_names):
            continue
        settings = objective if isinstance(objective, Mapping) else vars(objective)
        declared = settings.get(section) or ()
        names = [*dict.fromkeys([*declared, *names])]
        if isinstance(declared, Mapping):  # with the levels of columns
            names = {name: declared.get(name, "token") for name in names}
        if isinstance(objective, Mapping):
            filled["objective"] = {**objective, section: names}
        else:
            filled["objective"] = objective.replace(**{section: names})
    return filled


def require_scores(scores: Mapping[str, Any], read: frozenset[str]) -> None:
    """Check that each score that an objective reads has a model.

    Args:
        scores: of the run.
        read: names of the scores that the objective reads.

    Raises:
        ConfigError: one has none.
    """
    for name in sorted(read - {"reference"}):
        score = scores.get(name)
        if score is None or isinstance(score, ValueConfig) or score.required:
            raise ConfigError(
                f"the objective reads the score '{name}', and nothing names its model: use ",
                *(Setting(f"scores.{name}.run", "RUN"), " or "),
                Setting(f"scores.{name}.model", "NAME"),
            )
