"""RunConfig: everything that a run depends on, validated at once."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from rlobj.base.errors import Argument, Message, nearest
from rlobj.base.targets import names_in_file
from rlobj.base.validation import InvalidFields, Model
from rlobj.conversations import EnvironmentSettings
from rlobj.data import DataConfig
from rlobj.objectives.explanation import Explanation
from rlobj.objectives.objective import Objective
from rlobj.rewards import Math, RewardConfig
from rlobj.samplers import Distribution, SamplingSettings
from rlobj.samplers.vllm.settings import UNFITTED
from rlobj.settings.layers import reward_of_environment
from rlobj.settings.sampling import SamplingConfig
from rlobj.settings.scores import Lora, ScoreField, ValueConfig, with_names
from rlobj.settings.training import TrainingConfig


class LoraConfig(Lora):
    """Train low-rank adapters instead of all weights (LoRA, Hu et al. 2021, arXiv:2106.09685)."""

    sync: Literal["auto", "adapter", "merged"] = "auto"
    """what the sampler gets after an update: adapter = A and B alone; merged = all weights, with
    the update added (auto: adapter with vLLM, if it can take it)"""


ModelName = Annotated[str | None, AfterValidator(lambda name: None if name == "embedded" else name)]


class ModelConfig(Model):
    """The policy."""

    name: ModelName = None
    """hub id, folder or GGUF file of a causal language model; null or embedded = the embedded
    policy"""
    digest: str | None = None
    """of the model's GGUF file; a new run writes it here, and when it resumes it wants the same
    one"""
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

    @property
    def synced_rank(self) -> int:
        """The rank of the adapter that syncs bring alone; 0 = they bring merged weights."""
        return self.lora.rank if self.lora is not None and self.lora.sync == "adapter" else 0


PLAIN: dict[str, Any] = {
    "training.strategy": "ddp",
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
    records: int = Field(default=1000, ge=0)
    """largest number of touched and spurious tokens of an update that are recorded; 0 = no
    record"""
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
    objects: dict[str, str] = Field(default={})
    """the arguments of `rlobj.train` that were Python objects, with their names; whoever resumes
    the run passes them again"""
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
    `path/to/file.py:function`, a function `f(tokens, answer, **columns)` of the tokens' texts,
    which runs in a process of its own, with 30 seconds for a response and 4 GiB"""
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
    def _complete(cls, data: Any) -> Any:
        """The objective knows the names of scores and columns, and an environment grades."""
        if not isinstance(data, Mapping):
            return data
        return with_names(reward_of_environment(data) | {**data})

    @field_validator("columns")
    @classmethod
    def _check_sources(cls, columns: dict[str, str]) -> dict[str, str]:
        for name, source in columns.items():
            if source not in ("data", "reward") and ":" not in source:
                text = f"expected data, reward or FILE.py:FUNCTION, got {source!r}"
                raise InvalidFields([(name, f"{text}.{names_in_file(source)}")])
        return columns

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Check settings that depend on one another, all at once."""
        model, sampling, environment = self.model, self.sampling, self.environment
        updates, prompts = self.training.updates_per_step, sampling.prompts_per_step
        names, wrong = self.rewards.names or (), dict[str, str]()
        if updates > prompts:
            wrong["training.updates_per_step"] = (
                f"expected at most sampling.prompts_per_step, {prompts}: mini-batches hold groups"
            )
        if self.rewards.name is not None or self.rewards.weight != 1:
            wrong["rewards"] = "one reward has no name and no weight; expected a list"
        if model.name is not None and self.data.source is None:
            problems = Argument("data", "FILE.jsonl")
            wrong["data.source"] = Message(f"model '{model.name}' needs problems: use ", problems)
        templated = "data.system" if self.data.system else "model.chat_template_kwargs"
        plain = model.name is None or model.chat_template is False
        if plain and (self.data.system or model.chat_template_kwargs):
            wrong[templated] = "prompts go through no chat template; use data.template"
        if sampling.temperature == 0:
            wrong["sampling.temperature"] = "with 0, all responses of a group are equal"
        for name, whole in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            if getattr(sampling, name) != whole:
                wrong[f"sampling.{name}"] = (
                    f"expected {whole} in training: with a part of the distribution, importance "
                    f"ratios are biased. evaluation.{name} accepts any value"
                )
        if sampling.async_depth > 0 and sampling.engine == "vllm":
            wrong["sampling.async_depth"] = "expected 0 with engine=vllm; or use engine=vllm-server"
        if sampling.continuous and sampling.async_depth > 0:
            wrong["sampling.async_depth"] = "expected 0 with sampling.schedule=continuous"
        if sampling.continuous and sampling.dynamic and sampling.dynamic.whole_batches:
            wrong["sampling.dynamic.whole_batches"] = (
                "expected false: sampling.schedule=continuous has no batches"
            )
        if sampling.prompts_in_flight < prompts:
            wrong["sampling.in_flight"] = f"expected at least sampling.prompts_per_step, {prompts}"
        if self.training.shared_prompts is True and self.training.gradient_checkpointing is True:
            wrong["training.shared_prompts"] = (
                "expected auto or false with training.gradient_checkpointing=true"
            )
        if environment.target is not None and environment.tools:
            wrong["environment.tools"] = (
                f"environment.target={environment.target} answers the policy too: give one"
            )
        if isinstance(environment.at_limit, float) and names:
            wrong["environment.at_limit"] = "of several rewards, expected graded or undecided"
        problems = [*wrong.items()]
        for name, field in self.objective.needs.rewards.items():
            if name not in names:
                advice = nearest(name, names) if names else " 'rewards' is not a list with names."
                problems.append((f"objective.{field}", f"there is no reward '{name}'.{advice}"))
        if problems:
            raise InvalidFields(problems)
        return self

    @property
    def critic(self) -> ValueConfig | None:
        """The value that the objective reads; None = it reads none."""
        score = self.scores.get(str(self.objective.critic))
        return score if isinstance(score, ValueConfig) else None

    @property
    def bootstraps(self) -> bool:
        """Whether the value after the last token of a response that was cut is read."""
        return f"{self.objective.critic}_bootstrap" in self.objective.needs.plan

    @property
    def needs_answers(self) -> bool:
        """Whether training problems without an answer are left out."""
        return self.objective.reads_rewards and self.rewards.needs_answers

    def evaluation_settings(self) -> SamplingSettings:
        """Return the sampling settings for held-out problems."""
        distribution = {name: getattr(self.evaluation, name) for name in Distribution.model_fields}
        return self.sampling.settings(**distribution)

    def resolved_objective(self) -> Objective:
        """The objective with "max_tokens" replaced by the run's number."""
        return self.objective.resolve(self.sampling.longest_rollout)

    def explanation(self) -> Explanation:
        """The objective in words, as this run trains with it."""
        training = self.training
        of_sampler = training.old_logprobs == "sampler"
        updates = None if of_sampler else training.updates
        value_updates = 1 if self.critic is None else self.critic.updates
        return self.resolved_objective().explain(updates, value_updates)


def settings_of(config: Model) -> dict[str, Any]:
    """All settings of a configuration or objective as plain data, which its class reads back."""
    return config.model_dump(mode="json", by_alias=True)


def given_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that were given, without defaults; rewards and the objective whole.

    A run in another trainer has them: rlobj does not know the others.
    """
    chosen = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    settings = settings_of(config)
    return chosen | {name: settings[name] for name in ("objective", "rewards") if name in chosen}
