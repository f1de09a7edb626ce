"""What is refused before a run in verl starts, and that verl finds the plugin by itself."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_platform import ENVIRONMENT
from harness import compose_config, run_config
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from rlobj import ConfigError, RlobjError, load_preset
from rlobj.integrations.verl import settings

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
KL = f"{ACTOR}.use_kl_loss=True"
REF = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1"


def validate(policy: Path, *overrides: str, preset: str | None = "stapo") -> None:
    """What verl's main program does before it starts Ray."""
    config = run_config(policy, *overrides, preset=preset)
    validate_config(config, need_reference_policy(config), need_critic(config))


@pytest.mark.filterwarnings("ignore:Disabled critic")
@pytest.mark.parametrize(
    ("preset", "overrides"),
    [
        ("stapo", ()),
        ("20-entropy", (f"{ACTOR}.strategy=fsdp",)),
        ("otb", ()),  # reads Σπ², which verl's engine can compute
        ("lopti", (f"{ACTOR}.ppo_epochs=4", KL, REF)),
        ("tis", (f"{ROLLOUT}.calculate_log_probs=True",)),
        ("stapo", ("algorithm.rollout_correction.rollout_is=token",)),
        ("reinforce-pp", (KL, REF)),
        (None, (f"{ACTOR}.entropy_coeff=0.1",)),
    ],
)
def test_runs_start(sharp_policy: Path, preset: str | None, overrides: tuple[str, ...]) -> None:
    validate(sharp_policy, *overrides, preset=preset)


@pytest.mark.parametrize(
    ("preset", "overrides", "expected"),
    [
        ("stapoo", (), "stapo"),
        ("lp-reg", (), "verl does not provide the column 'proxy_logprobs'"),
        ("ar", (), f"{KL}"),
        ("tis", (f"{ROLLOUT}.calculate_log_probs=False",), f"{ROLLOUT}.calculate_log_probs=True"),
        ("gdpo", (), "several rewards"),
        ("lopti", (KL,), f"{ACTOR}.ppo_epochs=2"),
        ("stapo", (KL,), "the objective, which has no KL"),
        ("stapo", (f"{ACTOR}.entropy_coeff=0.01",), "entropy_coeff=0.01"),
        ("stapo", (f"{ACTOR}.strategy=megatron",), "fsdp2"),
        ("stapo", ("algorithm.adv_estimator=gae",), "a critic would be trained"),
        ("stapo", ("critic.enable=True",), "a critic would be trained"),
        ("stapo", ("algorithm.use_kl_in_reward=True",), "reward_kl"),
        ("stapo", ("algorithm.rollout_correction.bypass_mode=True",), "bypass_mode"),
        ("stapo", ("trainer.use_v1=False",), "trainer.use_v1=True"),
        ("stapo", ("distillation.enabled=True",), "distillation"),
        ("stapo", (f"{ACTOR}.use_prefix_grouper=True",), "use_prefix_grouper"),
        (
            "tis",
            (
                f"{ROLLOUT}.calculate_log_probs=True",
                "algorithm.rollout_correction.rollout_is=token",
            ),
            "correct the same gap",
        ),
        (None, ("+actor_rollout_ref.rlobj=stapo",), "loss_mode=rlobj"),
        (None, (f"{ACTOR}.policy_loss.loss_mode=rlobj",), "+actor_rollout_ref.rlobj=stapo"),
    ],
)
def test_what_cannot_be_right_is_refused_at_the_start(sharp_policy, preset, overrides, expected):
    with pytest.raises(ConfigError) as refused:
        validate(sharp_policy, *overrides, preset=preset)
    assert expected in str(refused.value)


def test_another_version_of_verl_is_refused_by_name(sharp_policy, monkeypatch):
    monkeypatch.setattr(settings, "version", lambda _: "0.10.0")
    with pytest.raises(ConfigError, match=r"verl 0\.10\.0; rlobj works with ==0\.9\.1"):
        validate(sharp_policy)
    validate(sharp_policy, preset=None)  # runs without rlobj are none of its business


def test_a_trainer_without_the_worker_stops() -> None:
    with pytest.raises(RlobjError, match="no plan"):
        get_policy_loss_fn("rlobj")(old_log_prob=None, log_prob=None)


def test_verl_loads_the_plugin_by_itself_and_nothing_with_it() -> None:
    """Whoever does not use rlobj imports none of its modules but the plugin."""
    code = (
        "import sys, verl\n"
        "print(*(name for name in sys.modules if name.startswith('rlobj')))\n"
        "from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY\n"
        "from verl.utils.config import validate_config\n"
        "print('rlobj' in POLICY_LOSS_REGISTRY, hasattr(validate_config, '__wrapped__'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **ENVIRONMENT},
    )
    loaded, changed = done.stdout.splitlines()
    plugin = {"rlobj", "rlobj.base", "rlobj.base.errors", "rlobj.base.memory", "rlobj.integrations"}
    plugin |= {"rlobj.installation", "rlobj.integrations.verl", "rlobj.integrations.verl.names"}
    assert {*loaded.split()} <= plugin
    assert changed.split() == ["True", "True"]


TRAINERS = Path(__file__).parents[2] / "docs" / "trainers.md"
PAGE = TRAINERS.read_text(encoding="utf-8").partition("\n## verl\n")[2].partition("\n## ")[0]


def recipes() -> list[list[str]]:
    """The settings of the page's commands: for eight GPUs, for a small run and for 64 GPUs."""
    texts = [text.replace("\\\n", " ") for text in PAGE.split("```") if "trainer.nnodes" in text]
    whole, *additions = [shlex.split(text.partition("\n")[2]) for text in texts]
    whole = whole[whole.index("verl.trainer.main_ppo") + 1 :]
    assert [words[0] for words in additions] == ["...", "..."]
    return [whole, *(whole + words[1:] for words in additions)]


@pytest.mark.filterwarnings("ignore:Disabled critic")
def test_the_recipes_of_the_page_pass_all_checks(sharp_policy: Path) -> None:
    for words in recipes():
        assert "+actor_rollout_ref.rlobj=stapo" in words
        config = compose_config(*words, f"actor_rollout_ref.model.path={sharp_policy}")
        validate_config(config, need_reference_policy(config), need_critic(config))
        actor = config.actor_rollout_ref.actor
        workers = config.trainer.nnodes * config.trainer.n_gpus_per_node
        ranks = workers // actor.fsdp_config.ulysses_sequence_parallel_size
        responses = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        assert responses % ranks == 0  # verl's training worker asserts it
        assert actor.ppo_max_token_len_per_gpu >= (
            config.data.max_prompt_length + config.data.max_response_length
        )


def test_the_recipes_for_8_and_64_gpus_have_the_settings_of_the_preset() -> None:
    """Those of the page's table, which names the setting of verl for each setting of a preset."""
    settings_of_verl = dict(
        re.findall(r"^\| `((?:data|sampling|training)\.\w+)` \| `([\w.]+)`", PAGE, re.M)
    )
    preset = load_preset("stapo").config
    wanted = {
        f"{part}.{name}": preset[part][name]
        for part in ("data", "sampling", "training")
        for name in preset[part]
    }
    assert wanted.keys() <= settings_of_verl.keys()
    updates = wanted["training.updates_per_step"]
    wanted["training.updates_per_step"] = wanted["sampling.prompts_per_step"] / updates
    eight, _, many = recipes()
    for words in (eight, many):
        config = compose_config(*words)
        found = {name: OmegaConf.select(config, settings_of_verl[name]) for name in wanted}
        assert found == wanted


@pytest.mark.filterwarnings("ignore:Disabled critic")
def test_the_preset_of_the_page_passes_all_checks(sharp_policy, preset):
    [text] = [text for text in PAGE.split("```") if "base: stapo" in text]
    path = preset(text.partition("\n")[2])
    validate(sharp_policy, KL, REF, preset=path)
    read = settings.read_settings(run_config(sharp_policy, KL, preset=path).actor_rollout_ref)
    assert read.selection == "old"
    assert "ref_logprobs" in read.objective.needs.ever
    config = run_config(sharp_policy, preset="dr-grpo").actor_rollout_ref
    assert settings.read_settings(config).objective.divisor.length == config.rollout.response_length
