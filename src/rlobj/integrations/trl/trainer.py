"""ObjectiveTrainer: TRL's GRPOTrainer, in which an objective of rlobj makes the loss.

An update is one window of gradient accumulation, over all processes. At its first micro-batch, TRL
prepares the inputs of the whole window, and `Objective.plan` reads them. Each `_compute_loss` is
then `Objective.loss` on one micro-batch. The losses add up to the objective of the update.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import BatchError, ConfigError, RunError
from rlobj.integrations.trl import rollout, settings
from rlobj.integrations.trl.progress import Inputs, Progress, Window
from rlobj.integrations.trl.recording import RecordEvents
from rlobj.integrations.trl.scores import TrlScore
from rlobj.objectives.objective import Objective
from rlobj.objectives.rewards import total_reward
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import ProcessGroup, agree
from rlobj.runs.loss_metrics import MicroBatchResult, combine
from rlobj.settings.presets import Preset

_POLICY = {"logprobs", "entropy", "old_logprobs", "old_entropy"}

_COLUMNS = {
    "groups": "rlobj_groups",
    "ids": "rlobj_ids",
    "rollouts": "rlobj_rollouts",
    "rewards": "rlobj_rewards",
    "old_logprobs": "old_per_token_logps",
    "old_entropy": "rlobj_old_entropy",
    "ref_logprobs": "ref_per_token_logps",
    "sampler_logprobs": "sampling_per_token_logps",
}
"""Columns of a TokenBatch, and their names in a rollout of TRL."""

_Trainer: Any = object  # of any kind, for the type checker: a subclass of GRPOTrainer follows


class ObjectiveMixin(_Trainer):
    """Gives a subclass of GRPOTrainer an objective: `class Mine(ObjectiveMixin, MyTrainer)`.

    Args:
        objective: a preset's name, such as "stapo", the path of a preset file, a Preset, or an
            Objective.
        advantages: "auto" uses TRL's advantages where `scale_rewards` names the objective's
            formula, and else the objective's own; "trl" and "objective" force one of them.
        selection: the policy that rules read in later updates of a rollout: "current" needs one
            more forward pass, "old" none; None = `training.selection` of the preset.
        record: the folder of the record, which `rlobj inspect` and the other commands read; True =
            `_rlobj` in GRPOConfig's output_dir, or `_rlobj-2`, ... if it is taken; False = none.
        output: settings of the record: `records` and `tables_every`; and `metrics`, which of
            rlobj's TRL logs: "all", "few", or a list of names, where * stands for any text.
        columns: columns of your own that the objective reads, one number for each response: `data`,
            a column of the data set, or `reward`, which a reward function gives to TRL's
            `log_extra(NAME, values)`. Default: those of the preset.
        scores: frozen models whose log-probs the objective reads, by name: `{"model": ...}`,
            `{"run": ...}` or `{"server": URL}`. Default: those of the preset.
        arguments: of GRPOTrainer, also by name.

    Attributes:
        objective: with the terms that the settings of TRL add; see `settings.fitted`.

    Raises:
        ConfigError: the objective or a setting of TRL cannot be used; says what to type.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        order = cls.__mro__
        if GRPOTrainer in order and order.index(GRPOTrainer) < order.index(ObjectiveMixin):
            raise ConfigError(f"class {cls.__name__}: name ObjectiveMixin before the trainer")
        if GRPOTrainer in order and rollout.Rollouts not in order:  # behind the user's trainers
            trainers = [base for base in cls.__bases__ if base is not GRPOTrainer]
            cls.__bases__ = (*trainers, rollout.Rollouts)

    def __init__(
        self,
        *arguments: Any,
        objective: str | Path | Preset | Objective | None = None,
        advantages: Literal["auto", "trl", "objective"] = "auto",
        selection: Literal["current", "old"] | None = None,
        record: bool | str | Path = True,
        output: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
        scores: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        args = named.get("args", arguments[2] if len(arguments) > 2 else None)
        config = settings.USUAL if args is None else vars(args)
        if advantages not in ("auto", "trl", "objective"):
            raise ConfigError(f"advantages={advantages!r}; expected 'auto', 'trl' or 'objective'")
        output = {"metrics": "all", **(output or {})}
        self._logged = settings.logged_metrics(output.pop("metrics"))
        chosen, run = settings.read_run(objective, selection, columns, scores, output)
        self._own, self._scores = run.columns, dict[str, TrlScore]()
        provided = {*run.columns, *(f"{name}_logprob" for name in run.scores)}
        sampler_logprobs = bool(config["use_vllm"] or named.get("rollout_func"))
        self.objective = settings.fitted(chosen, config, sampler_logprobs, provided)
        self._selection = run.training.selection
        self._reads = self.objective.needs.plan | self.objective.needs.observe
        self._own_advantages = advantages == "objective" or (
            advantages == "auto" and not settings.scaled_as(self.objective, config)
        )
        self._auto = advantages == "auto"
        self._progress = Progress({**self.objective.init(), "update": 0})
        super().__init__(*arguments, **named)
        settings.check_rewards(self.objective, self.reward_func_names)
        if self.accelerator.is_main_process:
            loss = super()._compute_loss
            settings.report(self.objective, vars(self.args), self._own_advantages, loss)
        device = self.accelerator.device
        self._comm = ProcessGroup(device)
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        for name in sorted(self.objective.read_scores & run.scores.keys()):
            score = run.scores[name]
            self._scores[name] = TrlScore(name, score, tokenizer, self.temperature, device)
        self._recorder: RecordEvents | None = None
        if record:
            folder = None if record is True else Path(record)
            self._recorder = RecordEvents(self, folder, run.preset, output)
            self.add_callback(self._recorder)
        self.loss_type = "sapo"  # with it, TRL logs no clip_ratio of its own loss

    # The window.

    def training_step(self, *arguments: Any, **named: Any) -> Tensor:
        loss = super().training_step(*arguments, **named)
        window = self._progress.window
        if window is None or window.position != self._step - window.first:
            raise RunError("trained without the objective's loss: _compute_loss must call super()")
        return loss

    def get_batch_samples(self, *arguments: Any, **named: Any) -> Any:
        batches, items = super().get_batch_samples(*arguments, **named)
        self._progress.batches, self._progress.window = batches, None
        return batches, items

    def _prepare_inputs(self, generation_batch: Any) -> Inputs:
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        window = self._progress.window
        if window is None or window.due is None:
            self._progress.window = window = self._open_window()
            if len(window.inputs) > 1:  # else the plan shares the forward pass of the loss
                self._plan(window)
        return window.inputs[window.position]

    def _open_window(self) -> Window:
        """The inputs of all micro-batches of the next update, sampled where TRL would sample."""
        progress, first, steps = self._progress, self._step, self.args.steps_per_generation
        batches, progress.batches = progress.batches, []
        inputs, rollouts, rewards = [], [], []
        try:
            for step, batch in enumerate(batches, first):
                self._step, before = step, self._buffered_inputs
                inputs.append(super()._prepare_inputs(batch))
                if self._buffered_inputs is not before:
                    rollouts.append([*self._buffered_inputs])
                    rewards.append(progress.rewards)
                if rollouts:  # a trainer of the user's may have made copies
                    rollouts[-1][step % steps] = inputs[-1]
        finally:
            self._step = first
        if rewards:
            progress.rewards = torch.cat(rewards)
        error: RunError | None = None
        for rows in (rows for sampled in rollouts for rows in sampled):
            missing = [name for name in rollout.ADDED if name not in rows]
            if missing or not rollout.marks(rows).equal(rows["rlobj_marks"]):
                error = RunError(
                    "the rows of a rollout are not those that were sampled: an override of "
                    "_generate_and_score_completions must treat all tensors alike, with rlobj_*"
                )
        agree(error, "sampling", self._comm)
        phases, rounds = self.objective.phases, self.num_iterations
        return Window(inputs, rollouts, phases[first // steps % rounds % len(phases)], first)

    def _plan(self, window: Window) -> None:
        """Observe the rollouts that are new, and plan the update; all processes together."""
        objective, progress = self.objective, self._progress
        for sampled in window.rollouts:
            tables = [self._read(window, inputs) for inputs in sampled]
            if self._own_advantages:
                tables = [table.replace(advantages=None) for table in tables]
                tables = objective.with_advantages(tables, self._comm)
                for inputs, table in zip(sampled, tables, strict=True):
                    assert table.advantages is not None
                    assert table.mask is not None
                    inputs["rlobj_advantages"].masked_scatter_(table.mask, table.advantages.float())
            progress.state = objective.observe(tables, progress.state, self._comm)
        window.tables = [self._read(window, inputs) for inputs in window.inputs]
        window.plan = window.phase.plan(
            window.tables, progress.state, self._comm, clauses=self._recorder is not None
        )

    def _read(self, window: Window, inputs: Inputs) -> TokenBatch:
        """A micro-batch as the rules read it; scored without gradient if they read the policy."""
        old = inputs.get("old_per_token_logps")
        if id(inputs) not in window.scored and self._reads & _POLICY:
            present = window.samples(inputs)  # the rollout's policy is the present one
            if old is not None and (present or self._selection == "old"):
                window.scored[id(inputs)] = old, inputs.get("rlobj_old_entropy")
            elif old is None or self._reads & {"logprobs", "entropy"}:
                how = self.args.gradient_checkpointing_kwargs
                with torch.no_grad(), disable_gradient_checkpointing(self.model, how):
                    logprobs, entropies, _ = self._forward(self.model, inputs)
                # In all tables of an update, or in none:
                reads = bool(self._reads & rollout.ENTROPY)
                window.scored[id(inputs)] = logprobs, entropies if reads else None
        unknown = torch.zeros_like(inputs["completion_ids"], dtype=torch.float32)
        return self._table(inputs, *window.scored.get(id(inputs), (unknown, None)))

    # The loss.

    def _compute_loss(self, model: Any, inputs: Inputs) -> Tensor:
        """TRL's forward pass, and the objective's loss of this micro-batch."""
        logprobs, entropies, auxiliary = scores = self._forward(model, inputs)
        with rollout.replaced(self, rollout.SCORE, lambda *_, **__: scores), torch.no_grad():
            GRPOTrainer._compute_loss(self, model, inputs)  # only to log TRL's own metrics
        table = self._table(inputs, logprobs, entropies)
        window = self._due(inputs, (logprobs.detach(), entropies.detach()))
        penalizes_old = any("old_logprobs" in p.needs() for p in self.objective.penalties)
        if penalizes_old and window.samples(window.due):  # l0 is l, without rounding
            table = table.replace(old_logprobs=table.logprobs.detach())
        loss = self._add(window, table)
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * auxiliary / len(window.inputs)
        return loss

    def _due(self, inputs: Inputs, scores: tuple[Tensor, Tensor]) -> Window:
        """The window of a micro-batch, planned; `scores` are those of its loss, detached."""
        window: Any = self._progress.window
        if not self.model.training:  # an update of its own, which changes no state
            window = Window([inputs], [], self.objective.replace(split=()))
            window.tables = [self._table(inputs, *scores)]
            window.plan = window.phase.plan(window.tables, self._progress.state, self._comm)
        elif window.plan is None:  # its only micro-batch: rules and loss share a forward pass
            if self._selection == "current" or "old_per_token_logps" not in inputs:
                window.scored[id(window.due)] = scores
            self._plan(window)
        return window

    def _add(self, window: Window, table: TokenBatch) -> Tensor:
        """The loss of the window's next micro-batch, as it is differentiated; the last one ends it.

        The losses of all micro-batches and processes add up to the objective. The processes'
        gradients are averaged, and TRL scales nothing else: so the loss is multiplied by their
        number.
        """
        last, training = window.position == len(window.inputs) - 1, self.model.training
        if training and self.accelerator.sync_gradients != last:
            planned = f"the {len(window.inputs)} micro-batches for which the update was planned"
            raise RunError(f"the optimizer's step does not come after {planned}")
        assert window.plan is not None
        try:
            output = window.phase.loss(table, window.plan, window.position)
        except BatchError as error:  # raised below on all processes together
            window.error = window.error or error
            output = window.phase.loss(table, window.plan, window.position, check=False)
        window.measured.append(MicroBatchResult.of(table, output, torch.arange(len(table))))
        if last:
            agree(window.error, "the loss", self._comm)  # before the optimizer's step
            updated = combine(window.measured, window.phase, window.plan, True, self._comm)
            window.metrics = {**window.plan.metrics, **updated}
            self._log_metrics(window.metrics, "train" if training else "eval")
            self._progress.state["update"] += training
        return output.loss * self.accelerator.num_processes

    def _log_metrics(self, metrics: Mapping[str, float], mode: str = "train") -> None:
        """Log those that `output` names."""
        for name, value in metrics.items():
            if any(fnmatchcase(name, pattern) for pattern in self._logged):
                self._metrics[mode][f"rlobj/{name}"].append(value)

    # Forward passes and tables.

    def _forward(self, model: Any, inputs: Inputs) -> Any:
        """Log-probs and entropies [B, T], and the loss of a router, from TRL's forward pass."""
        ids, mask = (
            torch.cat([inputs[f"prompt_{kind}"], inputs[f"completion_{kind}"]], dim=1)
            for kind in ("ids", "mask")
        )
        passed = {name: inputs[name] for name in rollout.PASSED if name in inputs}
        passed |= {"compute_entropy": True, "compute_aux_loss": self.aux_loss_enabled}
        self._entropy_bonus_enabled = "entropy" in self.objective.needs.loss  # else detached
        length = inputs["completion_ids"].size(1)
        scores = self._get_per_token_logps_and_entropies(model, ids, mask, length, **passed)
        self._entropy_bonus_enabled = False  # TRL has no bonus to log
        return scores

    def _table(self, inputs: Inputs, logprobs: Tensor, entropies: Tensor | None) -> TokenBatch:
        """TRL's inputs as a TokenBatch."""
        advantages = "rlobj_advantages" if self._own_advantages else "advantages"
        names, mask, own = self.reward_func_names, rollout.trained(inputs), rollout.OWN
        weights: list[float] = self.reward_weights.tolist()
        columns = {name: inputs[f"{own}{name}"][:, None].expand_as(mask) for name in self._own}
        columns |= {f"{name}_logprob": inputs[f"{own}{name}_logprob"] for name in self._scores}
        named = {name: inputs[key] for name, key in _COLUMNS.items() if key in inputs}
        if self._progress.turns:
            named |= rollout.turn_columns(inputs, total_reward(inputs["rlobj_rewards"], weights))
        return TokenBatch.from_padded(
            mask,
            logprobs,
            columns=columns,
            entropy=entropies,
            advantages=inputs.get(advantages),
            reward_names=names if len(set(names)) == len(names) else None,
            reward_weights=weights,
            **named,
        )

    # The record, and checkpoints.

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train, as GRPOTrainer does."""
        try:
            return super().train(*arguments, **named)
        finally:
            if self._recorder is not None and self._recorder.record is not None:
                self._recorder.record.close()

    def _get_grad_norm(self, *arguments: Any, **named: Any) -> Any:
        norm = super()._get_grad_norm(*arguments, **named)
        if self._recorder is not None and norm is not None:
            self._recorder.grad_norm = float(norm)
        return norm

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        record = self._recorder and self._recorder.record and self._recorder.record.state()
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial))
            path = folder / f"checkpoint-{self.state.global_step}"
            self._progress.write(path, record)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            record = self._progress.read(Path(checkpoint), self.objective)
            if self._recorder is not None:
                self._recorder.saved = record


class ObjectiveTrainer(ObjectiveMixin, GRPOTrainer):
    """TRL's GRPOTrainer with an objective of rlobj: `ObjectiveTrainer(..., objective="stapo")`."""
