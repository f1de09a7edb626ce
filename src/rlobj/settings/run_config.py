"""RunConfig: everything that a run depends on, validated at once.

The settings of dynamic sampling.

The names of the findings of a diagnosis, which `training.stop_on` may list.

The JSON schema of preset files, and the dotted names of all settings with their meaning.

The learning rate as a function of the step, so that it needs no place in a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from os.path import commonprefix
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rlobj.base.errors import Argument, ConfigError, Message, nearest
from rlobj.base.primitives import Primitive
from rlobj.base.validation import InvalidFields, Model, half_surrogates
from rlobj.conversations import EnvironmentSettings
from rlobj.data import DataConfig
from rlobj.objectives.objective import Objective
from rlobj.rewards import Math, RewardConfig
from rlobj.samplers import Distribution, SamplingSettings
from rlobj.samplers.vllm.settings import UNFITTED, ServerSettings, VllmSettings
from rlobj.settings.layers import Layer, layers_of, merged, reward_of_environment
from rlobj.settings.presets import flattened
from rlobj.settings.scores import ScoreField, with_names


class DynamicSampling(Model):
    """Drop groups without signal and sample new ones (DAPO, arXiv:2503.14476 eq. 11)."""

    by: Literal["accuracy", "reward"] = "accuracy"
    """keep groups with 0 < accuracy < 1, before reward shaping (accuracy; the reward says what is
    right), or groups with unequal rewards (reward)"""
    max_batches: int = Field(default=10, ge=1)
    """largest number of batches of prompts per step"""
    whole_batches: bool = False
    """false: a further batch has one prompt for each group that is missing, and the step trains on
    the groups that there are in the end; true, as in verl: each batch has prompts for a whole
    step, the step trains on the first `prompts_per_step` groups with a signal, and the run stops
    if there are fewer"""
    oversampling: float = Field(default=1.0, gt=0)
    """with `whole_batches`: prompts of a batch, as a multiple of `prompts_per_step`"""
    allow_fewer: bool = False
    """with `whole_batches`: train on the groups that there are, if they are too few"""


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
    "teacher-trouble",
    "tool-never-called",
    "called-in-vain",
    "turn-limit-reached",
]
"""A finding of the diagnosis."""


class LoraConfig(Model):
    """Train low-rank adapters instead of all weights (LoRA, Hu et al. 2021, arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1)
    """r, the rank of each update B·A"""
    alpha: float = Field(default=32.0, gt=0)
    """the update is alpha/r · B·A"""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """names of the linear layers that get an adapter"""


_OF_RLOBJ = {"conversation", "tokenize", "add_generation_prompt", "continue_final_message"}
"""Arguments of `apply_chat_template` that are no arguments of a template."""


class ModelConfig(Model):
    """The policy."""

    name: str | None = None
    """hub id or folder of a causal language model; null or embedded = the embedded policy"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """data type of forward passes; weights stay float32 (auto = bfloat16 on a GPU)"""
    chat_template: bool | Literal["auto"] = "auto"
    """wrap prompts in the tokenizer's chat template, if it has one"""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """arguments of the chat template, such as `{enable_thinking: false}`"""
    trust_remote_code: bool = False
    """run Python code from the model's repository"""
    lora: LoraConfig | None = None
    """train LoRA adapters; null = train all weights"""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _for_the_template(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(arguments.keys() & _OF_RLOBJ):
            raise ConfigError(f"rlobj sets {', '.join(taken)} itself; leave it out")
        return arguments

    @field_validator("name")
    @classmethod
    def _embedded_has_no_name(cls, name: str | None) -> str | None:
        return None if name == "embedded" else name


class SamplingConfig(SamplingSettings):
    """How responses are sampled."""

    max_tokens: int = Field(default=1024, ge=1)
    """largest number of tokens in a response"""
    engine: Literal["auto", "transformers", "vllm", "vllm-server", "object"] = "auto"
    """transformers, vLLM in the training process, a server of `rlobj serve`, or a Sampler object
    that Python code passed (auto: vllm if there are a GPU and vLLM, else transformers)"""
    prompts_per_step: int = Field(default=32, ge=1)
    """prompts per step, over all ranks"""
    group_size: int = Field(default=8, ge=1)
    """G, responses per prompt"""
    batch_tokens: int = Field(default=131072, ge=1)
    """prompt and response tokens that are sampled at the same time"""
    dynamic: DynamicSampling | None = None
    """dynamic sampling; null = train on every group"""
    context: int | None = Field(default=None, ge=2)
    """largest number of tokens in a conversation, with its prompt and all that the policy reads;
    null = what the engine allows"""
    async_depth: int = Field(default=0, ge=0)
    """number of rollouts sampled ahead; samples are exactly this many steps old; 0 = sample, then
    train"""
    max_logprob_gap: float | Literal["auto"] = "auto"
    """the run stops if the mean |sampler - trainer| log-prob of fresh samples exceeds this, in nats
    (auto: ten times the first step's, at most 0.001 in float32 and 0.1 in bfloat16, and limits of
    bias and slope)"""
    vllm: VllmSettings = VllmSettings()
    """vLLM in the training process"""
    server: ServerSettings = ServerSettings()
    """a vLLM server"""

    def settings(self, **other: Any) -> SamplingSettings:
        """Return the settings of the sampler, with other values if given."""
        own = {name: getattr(self, name) for name in SamplingSettings.model_fields}
        return SamplingSettings(**{**own, **other})


Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainingConfig(Model):
    """The updates. A step is one rollout with its updates; an update is one optimizer step."""

    steps: int = Field(default=100, ge=0)
    """number of rollouts"""
    updates_per_step: int = Field(default=1, ge=1)
    """number of mini-batches of whole groups per rollout"""
    passes: int = Field(default=1, ge=1)
    """number of times that a rollout is trained on; each pass has the same mini-batches in the same
    order"""
    learning_rate: float = Field(default=1e-6, gt=0)
    """peak learning rate of AdamW"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """learning rate after warm-up, constant or decreasing to `min_lr_ratio` times the peak"""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """smallest learning rate of a decreasing schedule, as a share of the peak"""
    warmup_steps: int = Field(default=0, ge=0)
    """steps of linear warm-up"""
    warmup_ratio: float | None = Field(default=None, ge=0, le=1)
    """share of the steps that is warm-up, rounded up; replaces `warmup_steps`"""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay"""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's betas"""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon"""
    fused: bool = False
    """torch's fused AdamW, which is faster on a GPU; equal up to rounding"""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """gradients are clipped to this norm; 1e9 = not clipped"""
    micro_batch_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """padded tokens per forward pass; changes memory, not results (auto: as many as fit the GPU;
    16384 on a CPU)"""
    packed: bool | Literal["auto"] = "auto"
    """pack responses into rows without padding (auto = with flash attention)"""
    selection: Literal["current", "old"] = "current"
    """policy that rules read in later updates of a rollout, the current one (one more forward pass)
    or the rollout's"""
    skip_inactive: bool = True
    """skip tokens and responses without a gradient; changes time, not results"""
    balance: bool = True
    """balance tokens between processes; changes time, not results"""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """recompute activations in the backward pass (auto: if they do not fit the GPU otherwise)"""
    strategy: Literal["auto", "ddp", "zero1", "zero2", "zero3", "fsdp2"] = "auto"
    """how processes share the policy, a copy each (ddp), DeepSpeed's ZeRO 1 to 3, or PyTorch's
    fsdp2 (auto: that of `accelerate launch`, or one that fits the GPU; ddp on a CPU)"""
    offload: Literal["auto", "cpu"] | None = "auto"
    """cpu: zero2 and zero3 keep AdamW's moments and the weights it updates in host memory, where
    the update is slower (auto: null, unless `accelerate launch` says so)"""
    max_skipped: int = Field(default=10, ge=1)
    """the run stops after this many skipped non-finite updates in a row, or steps in a row without
    an update"""
    hang_timeout: float = Field(default=600.0, gt=0)
    """seconds after which a process without any progress ends the run, if there are several"""
    threads: int | Literal["auto"] = "auto"
    """CPU threads of torch (auto = 1 if the run uses a CPU)"""
    stop_on: tuple[FindingName, ...] = ()
    """findings of the diagnosis that stop the run after a checkpoint, such as collapse"""

    @property
    def updates(self) -> int:
        """Optimizer updates per rollout, of each phase of the objective."""
        return self.updates_per_step * self.passes


PLAIN: dict[str, Any] = {
    "training.strategy": "ddp",
    "training.offload": None,
    "training.gradient_checkpointing": False,
    "training.micro_batch_tokens": 16384,
    **{f"sampling.vllm.{name}": value for name, value in UNFITTED.items()},
}
"""What `auto` stands for where nothing is to be fitted: on a CPU, or for the embedded policy."""


class EvaluationConfig(Distribution):
    """Held-out evaluation during training."""

    every: int = Field(default=10, ge=0)
    """steps between evaluations; 0 = none"""
    samples: int = Field(default=4, ge=1)
    """responses per problem"""
    problems: int | None = Field(default=256, ge=1)
    """number of test problems, from the first; null = all"""


class CheckpointConfig(Model):
    """Checkpoints contain everything that a run needs to continue exactly."""

    every: int = Field(default=50, ge=0)
    """steps between checkpoints; 0 = only the last"""
    minutes: float | None = Field(default=None, gt=0)
    """a checkpoint also at the end of the first step that ends so many minutes after the last
    one; null = none"""
    keep: int = Field(default=2, ge=1)
    """number of newest checkpoints to keep"""
    best: bool = True
    """also save the policy when its held-out accuracy, or reward where nothing says what is right,
    is the highest so far, and keep this checkpoint beside the newest; not if only the last step is
    saved"""


class OutputConfig(Model):
    """What a run writes beside metrics.jsonl and checkpoints, as Parquet files."""

    samples_every: int = Field(default=1, ge=0)
    """steps between sample tables; 0 = none"""
    records_mb: float = Field(default=200.0, ge=0)
    """largest size of the record of touched tokens, MB; 0 = no record"""
    records_share: float | None = Field(default=None, ge=0, le=1)
    """share of the untouched tokens that is recorded, 0 = none; null = 1%, and of a step with few
    tokens about 256"""
    tables_every: int = Field(default=10, ge=0)
    """steps between full tables of all tokens, and the last step; 0 = none"""
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    """trackers that receive the metrics, in addition to metrics.jsonl"""


class RunConfig(Model):
    """A run."""

    preset: str | None = None
    """the preset that the run uses"""
    origin: str | None = None
    """the checkpoint whose policy the run starts from, as RUN@STEP"""
    objective: Objective = Objective()
    """the objective"""
    scores: dict[str, ScoreField] = Field(default={})
    """policies whose log-probs of the same tokens the objective reads, by name: `teacher`"""
    model: ModelConfig = ModelConfig()
    """the policy"""
    data: DataConfig = DataConfig()
    """the problems"""
    rewards: RewardConfig = Math()
    """how responses are graded"""
    environment: EnvironmentSettings = EnvironmentSettings()
    """who answers the policy in conversations of several turns; by default a response is one
    turn"""
    columns: dict[str, str] = Field(default={})
    """columns of your own that rules read, by name: `data` (a number in the row of the problem),
    `reward` (returned by the reward function, `{"reward": 1.0, "columns": {NAME: 0.5}}`), or
    `path/to/file.py:function`, a function `f(tokens, answer, **columns)` of the tokens' texts"""
    sampling: SamplingConfig = SamplingConfig()
    """the rollouts"""
    training: TrainingConfig = TrainingConfig()
    """the updates"""
    evaluation: EvaluationConfig = EvaluationConfig()
    """held-out evaluation"""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """checkpoints"""
    output: OutputConfig = OutputConfig()
    """samples, records, tables"""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """seed of sampling, data order, and the generators of Python, numpy and torch"""

    @model_validator(mode="before")
    @classmethod
    def _objective_knows_names(cls, data: Any) -> Any:
        return with_names(data) if isinstance(data, Mapping) else data

    @model_validator(mode="before")
    @classmethod
    def _environment_grades(cls, data: Any) -> Any:
        return reward_of_environment(data) | {**data} if isinstance(data, Mapping) else data

    @field_validator("columns")
    @classmethod
    def _check_sources(cls, columns: dict[str, str]) -> dict[str, str]:
        known, text = ("data", "reward"), "expected data, reward or FILE.py:FUNCTION, got"
        wrong = {x: y for x, y in columns.items() if y not in known and ":" not in y}
        if wrong:
            raise InvalidFields(
                [(x, f"{text} {y!r}.{nearest(y, known)}") for x, y in wrong.items()]
            )
        return columns

    @model_validator(mode="after")
    def _fits(self) -> RunConfig:
        """Check settings that depend on one another, all at once."""
        model, sampling, environment = self.model, self.sampling, self.environment
        updates, prompts = self.training.updates_per_step, sampling.prompts_per_step
        names, wrong = self.rewards.names or (), dict[str, str]()
        if updates > prompts:
            wrong["training.updates_per_step"] = (
                f"{updates} mini-batches of whole groups need at least {updates} prompts; "
                f"sampling.prompts_per_step is {prompts}"
            )
        if self.rewards.name is not None or self.rewards.weight != 1:
            wrong["rewards"] = (
                "one reward has no name and no weight; expected a list: [{name: NAME, ...}]"
            )
        if model.name is not None and self.data.source is None:
            wrong["data.source"] = Message(
                f"model '{model.name}' needs problems to train on: ",
                Argument("data", "FILE.jsonl"),
                ", a hub data set, or a built-in task",
            )
        templated = "data.system" if self.data.system else "model.chat_template_kwargs"
        plain = model.name is None or model.chat_template is False
        if plain and (self.data.system or model.chat_template_kwargs):
            wrong[templated] = (
                "prompts go through no chat template: the model is the embedded policy, or "
                "model.chat_template is false. Leave it out; data.template is the text around a "
                "prompt"
            )
        if sampling.temperature == 0:
            wrong["sampling.temperature"] = (
                "with 0, all responses of a group are equal and give no signal; expected a number "
                "above 0, such as 1.0"
            )
        for name, whole in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            if (value := getattr(sampling, name)) != whole:
                wrong[f"sampling.{name}"] = (
                    f"{value} samples from only a part of the distribution, so that importance "
                    f"ratios are biased. Expected {whole} in training; evaluations accept any "
                    f"value, as evaluation.{name}"
                )
        if sampling.async_depth > 0 and sampling.engine == "vllm":
            wrong["sampling.async_depth"] = (
                "vLLM in the training process cannot sample during training; expected 0 with "
                "engine=vllm, or use engine=vllm-server"
            )
        if environment.target is not None and environment.tools:
            wrong["environment.tools"] = (
                f"environment.target={environment.target} answers the policy too: give one of "
                "both. An environment can have tools of its own"
            )
        if isinstance(environment.at_limit, float) and names:
            wrong["environment.at_limit"] = (
                "a number cannot stand for several rewards; expected graded or undecided"
            )
        if problems := [*wrong.items(), *self._unknown_rewards()]:
            raise InvalidFields(problems)
        return self

    def _unknown_rewards(self) -> Iterator[tuple[str, str]]:
        """The rewards that rules read by name and that do not exist."""
        names = self.rewards.names or ()
        for name, field in self.objective.needs.rewards.items():
            if name not in names:
                known = nearest(name, names) if names else " 'rewards' is not a list with names."
                yield f"objective.{field}", f"there is no reward '{name}'.{known}"

    def evaluation_settings(self) -> SamplingSettings:
        """Return the sampling settings for held-out problems."""
        own = {name: getattr(self.evaluation, name) for name in Distribution.model_fields}
        return self.sampling.settings(**own)

    def resolved_objective(self) -> Objective:
        """The objective with "max_tokens" replaced by the run's number."""
        return self.objective.resolve(self.sampling.max_tokens)


def settings_of(config: RunConfig) -> dict[str, Any]:
    """All settings of a configuration as plain data, which `RunConfig` reads back."""
    return config.model_dump(mode="json", by_alias=True)


def given_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that were given, without defaults; rewards and the objective whole.

    A run in another trainer has them: rlobj does not know the others.
    """
    given = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    settings = settings_of(config)
    return given | {name: settings[name] for name in ("objective", "rewards") if name in given}


def compose(preset: str | None, overrides: Sequence[Layer] = ()) -> RunConfig:
    """Return the configuration of a preset and what overrides it; see `build_config`.

    Args:
        preset: name or YAML file; None = the `preset` of an override, if any.
        overrides: (origin, partial RunConfig), later over earlier.

    Example:
        >>> compose("stapo", [("here", {"training": {"steps": 5}})]).training.steps
        5
    """
    return build_config(layers_of(preset, overrides))


def build_config(layers: Sequence[Layer]) -> RunConfig:
    """Merge layers of settings, lowest first, to one configuration.

    Raises:
        ConfigError: all errors at once, each with its path and layer.
    """
    default = Objective()
    kinds = {name: getattr(default, name).kind for name in ("advantage", "surrogate", "divisor")}
    settings = merged([("defaults", {"objective": kinds}), *layers])
    try:
        if broken := [*half_surrogates(settings)]:
            raise InvalidFields(broken)
        return RunConfig(**settings)
    except InvalidFields as error:
        lines = [
            Message(f"{path}{_origin(path, layers)}: ", text, _elsewhere(path, text))
            for path, text in error.problems
        ]
        raise ConfigError(Message.joined("\n", lines)) from None


def _elsewhere(path: str, text: str) -> str:
    """Advice for an unknown key: settings of other sections with its name, or its first word."""
    if not text.startswith("unknown key."):
        return ""
    name = path.rpartition(".")[2]
    ends = (f".{name}", f".{name.partition('_')[0]}")
    found = [known for known in flattened(settings_of(RunConfig())) if known.endswith(ends)]
    return f" Elsewhere: {', '.join(found)}." if found else ""


def _origin(path: str, layers: Sequence[Layer]) -> str:
    """' (from --set)': the last of the layers that hold most of the path, if any holds a part."""
    held = [
        (len(commonprefix([path.split("."), setting.split(".")])), index)  # noqa: RUF071  # of lists
        for index, (_, layer) in enumerate(layers)
        for setting in flattened(layer)
    ]
    depth, index = max(held, default=(0, 0))
    return f" (from {layers[index][0]})" if depth else ""


_OWN = {
    "base": {"type": "string", "description": "the preset or file that this one changes"},
    "paper": {"type": "string", "description": "name, authors, year and arXiv number"},
    "summary": {"type": "string", "description": "what the objective does, in one line"},
    "sources": {"type": "object", "description": "by source, the place that states each setting"},
}
_NOT_OF_PRESETS = ("preset", "origin")


def preset_schema() -> dict[str, Any]:
    """The JSON schema of a preset file. An editor that knows it completes and checks the keys.

    A primitive is a kind, a mapping with the fields of its kind, or without a kind the fields that
    change those of the base.
    """
    schema = RunConfig.model_json_schema()
    defs = schema["$defs"]
    for family in Primitive.__subclasses__():
        for kind, member in family.registry.items() if family.__name__ in defs else ():
            own = member.model_json_schema(ref_template="#/$defs/{model}")
            defs |= {name: each for name, each in own.pop("$defs", {}).items() if name not in defs}
            own["properties"] = {"kind": {"const": kind}, **own.get("properties", {})}
            defs[member.__name__] = {**own, "required": ["kind", *own.get("required", [])]}
            defs[family.__name__]["anyOf"].insert(-1, {"$ref": f"#/$defs/{member.__name__}"})
    settings = {k: v for k, v in schema["properties"].items() if k not in _NOT_OF_PRESETS}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rlobj preset"}
    return {**schema, **head, "properties": {**_OWN, **settings}}


def setting_meanings() -> dict[str, str]:
    """What each setting means, by its dotted name."""
    schema = RunConfig.model_json_schema()

    def walk(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
        for part in (node, *node.get("anyOf", ())):
            part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            for name, value in part.get("properties", {}).items():
                yield prefix + name, value.get("description", "")
                yield from walk(value, f"{prefix}{name}.")
            if part is not node:
                yield from walk({"anyOf": part.get("anyOf", ())}, prefix)

    return {name: text for name, text in walk(schema, "") if name not in _NOT_OF_PRESETS}


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of a step (from 0).

    With peak p, N steps, floor r = `min_lr_ratio`, and W = ceil(`warmup_ratio`·N) if that is set,
    else `warmup_steps`:

        step s < W   p·(s + 1)/W
        step s ≥ W   p·(r + (1 − r)·f(x)),   x = (s − W)/(N − W)
        f(x) =       1 − x for "linear", (1 + cos(πx))/2 for "cosine"; "constant": p

    Example:
        >>> config = TrainingConfig(steps=10, learning_rate=1.0, warmup_steps=4, schedule="linear")
        >>> [round(learning_rate(config, step), 2) for step in (0, 3, 4, 7, 9)]
        [0.25, 1.0, 1.0, 0.5, 0.17]
    """
    ratio, warmup, floor = config.warmup_ratio, config.warmup_steps, config.min_lr_ratio
    warmup = warmup if ratio is None else math.ceil(ratio * config.steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(config.steps - warmup, 1)
    shape = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
    }[config.schedule]
    return config.learning_rate * (floor + (1 - floor) * shape)
