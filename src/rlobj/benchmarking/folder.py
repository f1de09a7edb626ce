"""The folder of a measurement: every answer as it came, all tables as JSON, Markdown and pictures.

bench.json     tables, machine, versions, and the command of each table
bench.md       the same, to paste
NAME.png       a picture of each table
answers.jsonl  a line for each answer: a measurement that was stopped goes on behind the last
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.benchmarking import figures
from rlobj.benchmarking.machine import machine, versions
from rlobj.benchmarking.processes import kept_answers
from rlobj.benchmarking.tables import Table, from_json, markdown, to_json

__all__ = ["Folder"]


class Folder:
    """A folder of one machine and one set of versions.

    Attributes:
        path: where it is.
        machine: facts by name.
        versions: of what is installed.
        command: what is being run.
        tables: by name, in the order they were measured.
        failed: messages by the name of the benchmark.
        commands: what measured each of them.
    """

    def __init__(self, path: Path, command: str) -> None:
        """Make the folder, or go on with one.

        Args:
            path: where.
            command: what is being run.

        Raises:
            ConfigError: it cannot be written, something else is there, or it was measured
                elsewhere or with other versions.
        """
        self.path, self.command = path, command
        self.machine, self.versions = machine(), versions()
        self.tables: dict[str, Table] = {}
        self.failed: dict[str, str] = {}
        self.commands: dict[str, str] = {}
        try:
            self._open()
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"--out {path} cannot be written ({why}); give another") from error

    def _open(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out {self.path}: this is a file; give a new folder")
        if (self.path / "bench.json").exists():
            self._resume()
        elif self.path.exists() and any(self.path.iterdir()):
            raise ConfigError(
                f"--out {self.path}: there are files but no bench.json; give a new folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._write()

    def _resume(self) -> None:
        try:
            found = json.loads((self.path / "bench.json").read_text(encoding="utf-8"))
            there = {**found["machine"], **found["versions"]}
            self.tables = {table["name"]: from_json(table) for table in found["tables"]}
            self.failed = dict(found["failed"])
            self.commands = dict(found.get("commands", {}))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"--out {self.path}: its bench.json is not one that rlobj bench wrote; give a new "
                "folder"
            ) from error
        here = {**self.machine, **self.versions}
        names = sorted({*there, *here} - {"rlobj"})  # its sources say it: a commit may change none
        other = [name for name in names if there.get(name) != here.get(name)]
        if other:
            told = "; ".join(
                f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} here"
                for name in other
            )
            raise ConfigError(
                f"--out {self.path} was measured on another machine or with other versions "
                f"({told}). Give a new folder."
            )

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Within, answers of this benchmark are kept, and those kept before are used again."""
        self.failed.pop(name, None)
        with kept_answers(self.path / "answers.jsonl"):
            yield

    def add(self, table: Table) -> None:
        """Write a table."""
        self.tables[table.name], self.commands[table.name] = table, self.command
        self._write()

    def fail(self, name: str, message: str) -> None:
        """Write down why there is no table."""
        self.failed[name], self.commands[name] = message, self.command
        self._write()

    def draw(self, table: Table) -> Path:
        """A picture of the table.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        file = self.path / f"{table.name}.png"
        figures.save(importlib.import_module(f"rlobj.benchmarking.{table.name}").draw, table, file)
        self._write()
        return file

    def _write(self) -> None:
        found: dict[str, Any] = {
            "commands": self.commands,
            "machine": self.machine,
            "versions": self.versions,
            "failed": self.failed,
            "tables": [to_json(table) for table in self.tables.values()],
        }
        _replace(self.path / "bench.json", json.dumps(found, indent=1) + "\n")
        _replace(self.path / "bench.md", self._page())

    def _page(self) -> str:
        facts = [*self.machine.values(), *(f"{n} {v}" for n, v in self.versions.items())]
        parts = [f"# rlobj bench\n\n{'; '.join(facts)}\n"]
        for name, table in self.tables.items():
            parts.append(f"{markdown(table)}\nCommand: `{self.commands[name]}`\n")
            if (self.path / f"{name}.png").exists():
                parts.append(f"![{table.title}]({name}.png)\n")
        parts += [f"`{name}` failed:\n\n```text\n{why}\n```\n" for name, why in self.failed.items()]
        return "\n".join(parts)


def _replace(file: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
