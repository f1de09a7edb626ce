"""The section `scores:` of a run: policies and values that score the tokens of its rollouts."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rlobj.base.addresses import Address
from rlobj.base.errors import ConfigError, Setting
from rlobj.base.validation import InvalidFields, Model
from rlobj.data import Problem

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

    value: bool
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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        low, high = self.range or (0.0, 1.0)
        other = f"expected policy, a copy of it before training, or a model; got {self.model}"
        checks = {
            "value": not self.value and "expected true; without it, a score is that of a policy",
            "model": self.model in ("reference", REQUIRED) and other,
            "range": low >= high and f"expected [lowest, highest], got {[low, high]}",
        }
        _refuse(checks)
        return self


def _refuse(mistakes: Mapping[str, Any]) -> None:
    """Raise an error with these mistakes, by setting; what is false is none."""
    if problems := [(name, str(text)) for name, text in mistakes.items() if text]:
        raise InvalidFields(problems)


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
        _refuse(checks)
        return self


def _frozen(entry: Any) -> Any:
    """The settings of one of several models, from its name or from settings."""
    settings = {"model": entry} if isinstance(entry, str) else entry
    named = vars(settings) if isinstance(settings, ScoreConfig) else settings
    keys = ("model", "run", "server")
    sources = [named.get(key) for key in keys] if isinstance(named, Mapping) else [None]
    if not any(sources) or sources[0] in ("policy", REQUIRED):
        expected = "expected a frozen model: its name, or settings with model, run or server"
        raise ConfigError(f"{expected}; got {entry!r}")
    return settings


class RoutedConfig(Model):
    """Several frozen models, such as the teachers of subjects: a column of the problems says which
    of them scores a response."""

    by: str
    """column of the problems whose value names the model; `source` is also the label of a problem's
    source, if the data has several"""
    models: dict[
        Annotated[str, BeforeValidator(str)],
        Annotated[ScoreConfig, BeforeValidator(_frozen, json_schema_input_type=str | ScoreConfig)],
    ] = Field(min_length=1)
    """model of each value of the column: its name, or the settings of a score without `by`"""

    is_policy: ClassVar[bool] = False
    required: ClassVar[bool] = False

    def chosen(self, name: str, problem: Problem) -> str:
        """The name of the model that scores the responses to a problem, `teacher.models.math`.

        Raises:
            ConfigError: the problem names none; `name` is that of the score.
        """
        columns = {**({"source": problem.source} if problem.source else {}), **problem.extra}
        if (key := str(columns.get(self.by))) in self.models:
            return f"{name}.models.{key}"
        value = f"{key!r} in the column '{self.by}'" if self.by in columns else f"no '{self.by}'"
        models = f"scores.{name}.models has {', '.join(self.models)}"
        raise ConfigError(f"scores.{name}.by: problem {problem.id} has {value}, and {models}")


def single_scores(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of one model, and each model of the others, by names of settings: `teacher`, or
    `teacher.models.math` and so on."""
    single: dict[str, Any] = {}
    for name, score in scores.items():
        if isinstance(score, RoutedConfig):
            single |= {f"{name}.models.{key}": part for key, part in score.models.items()}
        else:
            single[name] = score
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
        entries, objective = config.get(section), filled.get("objective", {})
        if not isinstance(entries, Mapping):
            continue
        filled[section] = {n: entry for n, entry in entries.items() if entry is not None}
        names = [n for n, entry in filled[section].items() if not _is_value(entry)]  # of advantages
        if not (names and (isinstance(objective, Mapping) or hasattr(objective, section))):
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
    """Check that each of the scores that an objective reads has a model.

    Raises:
        ConfigError: one has none.
    """
    for name in sorted(read):
        score = scores.get(name, ScoreConfig())
        unnamed = score.required and name != "reference"
        if unnamed or isinstance(score, ValueConfig):
            raise ConfigError(
                f"the objective reads the score '{name}', and nothing names its model: use ",
                *(Setting(f"scores.{name}.run", "RUN"), " or "),
                Setting(f"scores.{name}.model", "NAME"),
            )
