"""Settings for every test: one thread, hypothesis without a clock or a random seed, a policy."""

from __future__ import annotations

import os
import sys
from collections import Counter

import pytest
import torch
from browser import Browser
from hypothesis import HealthCheck, settings

# Tests start some hundred processes: with this in the environment each compiles all anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")  # on small tensors two threads wait for each other
if sys.version_info < (3, 12):  # setuptools fails to replace a distutils that somebody imported
    os.environ.setdefault("SETUPTOOLS_USE_DISTUTILS", "stdlib")
if "VLLM_CACHE_ROOT" not in os.environ:  # where vLLM keeps what it knows of a model's class
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    os.environ["VLLM_CACHE_ROOT"] = os.path.join(cache, "vllm")
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed prints that it guessed so
torch.set_num_threads(1)
settings.register_profile(
    "rlobj",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rlobj")


LONGEST = (
    *("test_new_processes.py", "test_vllm_server.py", "test_ranks.py", "test_verifier.py"),
    *("test_cli_trust.py", "test_sharded_moments.py", "test_trl_turns.py", "test_trl.py"),
    *("test_verifier_suite.py", "test_trl_inputs.py", "test_memory.py", "test_reasoning_gym.py"),
    *("test_trl_record.py", "test_default_task.py", "test_server_training.py"),
    *("test_parallel.py", "test_math_verify.py", "test_tools.py", "test_named_functions.py"),
    *("test_trl_state.py", "test_invariance.py", "test_trl_options.py"),
    *("test_measurements.py", "test_eval_program.py", "test_surviving_samplers.py"),
    *("test_docs.py", "test_floors.py", "test_recorder.py", "test_score_models.py"),
    *("test_packaging.py", "test_trl_versions.py", "test_trl_windows.py"),
    *("test_strategies.py", "test_conversation.py", "test_in_trl.py"),
)
"""Files that take long, in either part. None of them runs vLLM in the process of the tests."""


def pytest_configure(config):
    config.option.loadscopereorder = False  # by which pytest-xdist begins with most tests


def pytest_collection_modifyitems(items):
    """Begin with the longest files, so that no worker waits for the last one of another."""
    places = {name: place for place, name in enumerate(LONGEST)}
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (places.get(item.path.name, len(places)), -counts[item.path]))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """The headless Chromium of all tests."""
    driven = Browser(tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """A headless Chromium with a window of 1280 px."""
    chromium.resize(1280, 900)
    return chromium


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """The folder of a tiny policy with random weights, which no test changes."""
    from tiny import save_tiny_policy

    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def smollm2():
    """The folder of SmolLM2-135M-Instruct; a test is skipped that cannot have it."""
    return _real("real_model")


@pytest.fixture(scope="session")
def smollm2_file():
    """The GGUF file of SmolLM2-135M-Instruct; a test is skipped that cannot have it."""
    return _real("real_file")


def _real(what):
    from benchmarks import real_model

    try:
        return getattr(real_model, what)()
    except (ConnectionError, ImportError) as error:
        pytest.skip(f"no SmolLM2: {error}")


@pytest.fixture(scope="session")
def whole(policy, tmp_path_factory):
    """A run of `tiny.eight_steps` that nothing happened to."""
    from tiny import eight_steps

    from rlobj.training import run_training

    folder = tmp_path_factory.mktemp("whole") / "run"
    run_training(eight_steps(policy), folder)
    return folder
