"""Checks of the documentation: its code, commands, files, tables and messages."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from documents import BLOCK, PAGES, README, ROOT, blocks, commands
from typer.testing import CliRunner

import rlobj
import rlobj_cli
from rlobj.base.yaml import load_yaml
from rlobj.data import load_problems
from rlobj.objectives.plan import EFFECTS
from rlobj.rewards import Custom
from rlobj.settings.building import build_config
from rlobj.settings.layers import EMBEDDED_LAYER, file_layer, layers_of, parse_setting
from rlobj.settings.presets import load_preset, preset_names
from rlobj_cli.app import app

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
_FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")


def pages_with(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(block[0] in languages for block in blocks(page))]


@pytest.fixture
def docs_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    yield importlib.import_module("tables")
    sys.modules.pop("tables", None)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Create a working folder with the files that code blocks name in their first line."""
    monkeypatch.chdir(tmp_path)
    for page in PAGES:
        for _, text, _ in blocks(page):
            if name := _FILE.match(text):
                (tmp_path / name[1]).write_text(text, encoding="utf-8")
    (tmp_path / "responses.jsonl").write_text(
        '{"response": "So \\\\boxed{2^{10}}", "answer": "1024"}\n'
        '{"response": "It is 5.", "answer": "5"}\n{"response": "5", "answer": ""}\n'
    )
    (tmp_path / "problems.jsonl").write_text(
        "\n".join(
            text.strip() for page in PAGES for kind, text, _ in blocks(page) if kind == "json"
        )
    )
    return tmp_path


def run_examples(text: str, names: dict[str, Any], page: Path, line: int) -> None:
    """Run `>>>` lines in a namespace and compare their output."""
    example = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line)
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(example, out=output.append, clear_globs=False)
    names.update(example.globs)
    assert runner.summarize(verbose=False).failed == 0, "".join(output)


SLOW = {"README", "python", "inspect"}  # pages that train a policy


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.stem in SLOW else [], id=page.stem)
        for page in pages_with("python", "pycon")
    ],
)
def test_code_of_a_page_runs_from_top_to_bottom(page, written):
    names: dict[str, Any] = {"__name__": page.stem}
    state = torch.get_rng_state()
    for language, text, line in blocks(page):
        if language == "python":
            code = compile("\n" * line + text, str(page), "exec", dont_inherit=True)
            exec(code, names)
        elif language == "pycon":
            run_examples(text, names, page, line)
    torch.set_rng_state(state)


def test_the_program_of_the_verifier_page_grades_a_file_of_responses(written, capsys):
    exec(compile((written / "grade_file.py").read_text(), "grade_file.py", "exec"), {})
    assert capsys.readouterr().out == "1 of 3 are right, 1 undecided\n"


def modules() -> list[str]:
    """All modules of the library and of the program."""
    below = chain.from_iterable(
        pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for package in (rlobj, rlobj_cli)
    )
    return ["rlobj", *(info.name for info in below if not info.name.endswith("__main__"))]


def test_examples_in_docstrings_are_correct():
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for name in modules():
        with contextlib.suppress(rlobj.MissingExtra):  # verl has its own environment
            for example in doctest.DocTestFinder().find(importlib.import_module(name)):
                runner.run(example, out=output.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(output)


def test_commands_for_other_launchers_exist():
    text = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^.*(?:-m rlobj_cli|exec rlobj) (.*)$", text, re.MULTILINE)
    assert len(found) == 6
    for words in map(shlex.split, found):
        command: Any = typer.main.get_command(app)
        context = command.commands[words[0]].make_context(words[0], words[1:])
        assert context.params["processes"] is None


PROGRAM = f"""#!{sys.executable}
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), sys.exit(0)))
print(*sys.argv[1:], flush=True)
if "resume" in sys.argv:
    time.sleep(60)
sys.exit(3 if "fails" in sys.argv[-3] else 0)
"""
"""Stands for rlobj: `train` ends at once, `resume` when it gets SIGTERM."""


@pytest.fixture
def start(tmp_path):
    """Starts the script of the Kubernetes job for a run, with a program in rlobj's place."""
    text = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```yml\n# stapo.job.yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [container] = load_yaml(shown)["spec"]["template"]["spec"]["containers"]
    (tmp_path / "rlobj").write_text(PROGRAM)
    (tmp_path / "rlobj").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    def started(run):
        environment = {**os.environ, "PATH": path, "RUN": str(run)}
        command = [*container["command"], *container["args"]]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return started


def test_a_kubernetes_job_is_done_only_if_its_run_is(start, tmp_path):
    for name, code in {"works": 0, "fails": 3}.items():
        process = start(tmp_path / name)
        words = shlex.split(process.communicate(timeout=60)[0])
        assert process.returncode == code
        command: Any = typer.main.get_command(app)
        context = command.commands["train"].make_context("train", words[1:])
        assert context.params["processes"] == 8
        assert context.params["out"] == tmp_path / name
    (tmp_path / "began" / "checkpoints").mkdir(parents=True)
    process = start(tmp_path / "began")
    assert process.stdout.readline() == f"resume {tmp_path}/began --processes 8\n"
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 1  # although the program ends with 0


def test_commands_options_and_arguments_on_pages_exist():
    shown = [words for page in PAGES for words in commands(page)]
    assert len(shown) > 10
    for words in shown:
        command: Any = typer.main.get_command(app)
        rest = list(words)
        context = None
        while hasattr(command, "commands"):
            assert rest, f"rlobj {shlex.join(words)} stops before a command"
            name = rest.pop(0)
            if name.startswith("-"):
                break
            if name not in command.commands and hasattr(command, "DEFAULT"):
                rest.insert(0, name)
                name = command.DEFAULT
            assert name in command.commands, f"rlobj {shlex.join(words)}: no command {name}"
            command = command.commands[name]
        else:
            context = command.make_context(name, rest)
        assert context is not None or name in ("--version", "--help")


def test_training_commands_on_pages_are_valid_runs():
    checked = 0
    for words in (words for page in PAGES for words in commands(page)):
        if words[0] != "train" or {"--config", "--from"} & {*words}:
            continue
        options = list(pairwise(words))
        given = dict(options)
        if not (ROOT / "presets" / f"{given['--preset']}.yaml").exists():
            continue  # the reader's own file, checked below
        layers = [("--model", {"model": {"name": given.get("--model")}})]
        source, target = given.get("--data"), given.get("--environment")
        layers += [("--environment", {"environment": {"target": target}})] * bool(target)
        layers += [("--data", {"data": {"source": source}})] * bool(source or not target)
        layers += [("--set", parse_setting(text)) for flag, text in options if flag == "--set"]
        build_config(layers_of(given["--preset"], layers))
        checked += 1
    assert checked > 3


def test_settings_named_in_the_text_exist(docs_tables):
    """Check keys such as `training.selection` in code spans."""
    sections = ("data", "model", "rewards", "sampling", "training", "evaluation", "checkpoint")
    listed = f"{docs_tables.configuration()}\n{docs_tables.primitives()}"
    known = set(re.findall(r"^\| `([\w.]+)` \|", listed, re.MULTILINE))
    known |= {"kind", "columns", *Custom.model_fields}
    known |= {"max_prompt_length", "train_batch_size", "max_response_length"}  # verl's `data`
    for page in PAGES:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for section, key in re.findall(rf"`({'|'.join(sections)})\.([\w.]+)", text):
            assert key in known, f"{page.name}: {section}.{key} is no setting"


@pytest.mark.parametrize("page", pages_with("yaml"), ids=lambda page: page.stem)
def test_yaml_on_pages_is_a_valid_configuration(page, written):
    for language, text, line in blocks(page):
        if language != "yaml":
            continue
        path = written / f"shown-{line}.yaml"
        path.write_text(text, encoding="utf-8")
        layers = layers_of(None, [file_layer(path)])
        kept = [layer for layer in layers if layer[0] != EMBEDDED_LAYER]
        build_config(kept)


@pytest.mark.parametrize("page", pages_with("console"), ids=lambda page: page.stem)
def test_printed_output_on_pages_is_that_of_the_command(page, written):
    runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
    for language, text, line in blocks(page):
        if language in ("console", "text") and text.startswith("$ rlobj "):
            command, _, shown = text.removeprefix("$ rlobj ").partition("\n")
            lines = runner.invoke(app, shlex.split(command)).output.rstrip().splitlines()
            printed = "\n".join(line.rstrip() for line in lines) + "\n"
            same = doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)
            assert same, f"{page.name}, line {line}: rlobj {command} prints\n{printed}"


def test_problem_file_on_pages_is_read(written):
    config = build_config([("test", {"data": {"source": "problems.jsonl"}})])
    assert [problem.answer for problem in load_problems(config.data, "train")] == ["42"]


def test_the_families_of_the_readme_have_every_preset_once():
    _, _, rest = README.read_text(encoding="utf-8").partition("| family | presets |\n")
    rows = rest.partition("\n\n")[0].splitlines()[1:]
    listed = [re.findall(r"`([^`]+)`", row) for row in rows]
    assert len(rows) == 8
    assert all(names == sorted(names) for names in listed)
    assert sorted(chain.from_iterable(listed)) == sorted(preset_names())


def test_the_readme_has_at_most_1700_words():
    assert len(README.read_text(encoding="utf-8").split()) <= 1700


def test_readme_code_builds_the_stapo_preset(written):
    [first, *_] = [text for kind, text, _ in blocks(ROOT / "README.md") if kind == "python"]
    names: dict[str, Any] = {}
    exec(first, names)
    assert names["stapo"] == load_preset("stapo").objective
    code = [line for line in first.splitlines() if line and not line.startswith("from")]
    assert len(code) <= 6


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.stem == "recipes" else [], id=page.stem)
        for page in PAGES
        if "<!-- table: " in page.read_text(encoding="utf-8")
    ],
)
def test_the_tables_of_a_page_are_those_of_the_code(page, docs_tables):
    text = page.read_text(encoding="utf-8")
    same = docs_tables.filled(text) == text
    assert same, f"a table of {page.name} has changed: run `python docs/tables.py --write`"
    ends = re.findall(r"^<!-- end of table: (\S+) -->$", text, re.MULTILINE)
    assert ends == re.findall(r"^<!-- table: (\S+) -->$", text, re.MULTILINE)


def test_every_table_is_in_a_page(docs_tables):
    texts = [page.read_text(encoding="utf-8") for page in docs_tables.PAGES]
    used = {name for text in texts for name in re.findall(r"^<!-- table: (\S+) -->$", text, re.M)}
    assert used == set(docs_tables.TABLES)


def without_blocks(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    fenced = r"^( *)```.*?^\1```$"
    return re.sub(fenced, "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def without_code(page: Path) -> str:
    """The text of a page without its code."""
    return re.sub(r"(`+)[^\n]*?\1", "", without_blocks(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    names: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE):
        shown = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading)
        names.append(re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-"))
    repeated = [names[:place].count(name) for place, name in enumerate(names)]
    return {f"{name}-{n}" if n else name for name, n in zip(names, repeated, strict=True)}


LINKING = [
    *(*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "SECURITY.md", "benchmarks/README.md"))),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
]


def test_every_link_leads_to_a_file_and_to_a_heading_of_it():
    broken = []
    for page in LINKING:
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)", without_code(page)):
            file, _, heading = link.partition("#")
            place = page.parent / file if file else page
            if not place.exists() or (heading and heading not in anchors(place)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_the_first_page_links_to_every_page():
    docs = ROOT / "docs"
    links = re.findall(r"\]\((\S+\.md)\)", (docs / "index.md").read_text(encoding="utf-8"))
    assert {*links, "index.md"} == {page.name for page in docs.glob("*.md")}


def test_pages_have_only_markdown_that_a_repository_host_renders():
    """No directives and roles of MyST, and no HTML but comments and line breaks."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        directives = re.findall(r"^ *(?:```|:::+) *{.*", text, re.MULTILINE)
        marked = re.findall(r"{[\w:-]+}|(?<!\\)<(?!br>|!-- )[\w/!][^>]*>", without_code(page))
        assert [*directives, *marked] == [], page.name


def test_the_page_of_presets_has_at_most_5000_words():
    text = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 5000


def test_the_table_of_presets_has_the_formula_and_the_departures_of_each(docs_tables: Any) -> None:
    rows = docs_tables.presets_table().splitlines()[2:]
    departures = load_yaml((ROOT / "docs" / "departures.yaml").read_text(encoding="utf-8"))
    for name, row in zip(preset_names(), rows, strict=True):
        assert row.startswith(f"| `{name}`: ")
        assert f"Z {load_preset(name).objective.divisor.kind}" in row
        for departure in departures:
            text = f"{departure['source']} → {departure['here']}"
            shown = name in departure["presets"] and not departure.get("minor")
            assert (text in row) == shown
    assert (
        "drop (advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)"
        in rows[preset_names().index("stapo")]
    )


@pytest.mark.parametrize("name", preset_names())
def test_every_pinned_setting_of_a_preset_has_a_source(name, docs_tables):
    preset = load_preset(name)
    sources = docs_tables.sources_of(preset)
    for setting in docs_tables.pinned(preset.config):
        assert re.match(r"assumed|arXiv:\d{4}\.\d{5}|[\w-]+/[\w.-]+", sources[setting])


def test_every_setting_has_a_meaning_in_the_configuration_tables(docs_tables):
    text = docs_tables.configuration()
    for line in text.splitlines():
        if line.startswith("| `"):
            assert not line.endswith("|  |"), f"no meaning: {line}"
    keys = build_config([]).model_dump(mode="json", by_alias=True)
    for section, values in keys.items():
        for key in values if isinstance(values, dict) and section != "rewards" else ():
            assert f"| `{key}` |" in text, f"{section}.{key} is not in the tables"


def test_code_in_the_configuration_tables_has_no_escapes(docs_tables):
    text = f"{docs_tables.configuration()}\n{docs_tables.primitives()}"
    code = re.findall(r"`[^`\n]+`", text)
    assert len(code) > 100
    assert [span for span in code if re.search(r"\\[*_<]", span)] == []


def messages() -> list[str]:
    """List all text constants of the code, with `…` in place of inserted values."""
    found = []
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
            text = "".join(text for text in texts if isinstance(text, str))
            found.append(re.sub(r"%[sd]", "…", text))
    return found


def test_the_first_run_is_one_run_on_all_pages():
    """Its numbers of tokens, and those of a group of tokens that each page shows."""
    pages = [README, *(ROOT / "docs" / f"{name}.md" for name in ("start", "inspect"))]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    for pattern in (r"^touched tokens: .*", r"^dropped \d.*", r"^ \[3\] dropped .*\n.*"):
        shown = [re.findall(pattern, text, re.MULTILINE)[0] for text in texts]
        assert len({*shown}) == 1, shown


def test_every_message_in_troubleshooting_is_in_the_code():
    text = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    shown = re.findall(r"^#### `(.+)`$", text, re.MULTILINE)
    assert len(shown) > 10
    known = messages()
    assert [message for message in shown if not any(message in text for text in known)] == []


def _documented(metric: str) -> bool:
    """Whether docs/metrics.md has the metric; capitals in it, as in `loss/NAME`, are any text."""
    named = re.findall(r"`([a-z]+/[^`]+)`", (ROOT / "docs" / "metrics.md").read_text("utf-8"))
    patterns = (re.sub(r"\\?[A-Z]+", ".+", re.escape(name)) for name in named)
    return any(re.fullmatch(pattern, metric) for pattern in patterns)


@pytest.mark.slow
def test_metrics_named_on_pages_are_written(tmp_path):
    from tiny import save_tiny_policy, tiny_config

    from rlobj.training import run_training

    policy = save_tiny_policy(tmp_path / "policy")
    config = tiny_config(policy, training={"steps": 2}, evaluation={"every": 1, "problems": 4})
    summary = run_training(config, tmp_path / "run")
    written = {name for line in summary.history for name in line}
    gated = {"penalties": [{"kind": "entropy_bonus"}], "drop": "prob < 0.01"}
    config = tiny_config(policy, "stare", training={"steps": 1}, objective=gated)
    more = {name for line in run_training(config, tmp_path / "other").history for name in line}
    assert {"controller/W", "loss/entropy_bonus"} <= more
    (tmp_path / "mine.py").write_text("def number(response, answer, **_): return 0.5\n")
    rewards = {"kind": "custom", "target": f"{tmp_path / 'mine.py'}:number"}
    named = {"evaluation": {"every": 1, "problems": 4}, "training": {"steps": 1}}
    config = tiny_config(policy, rewards=rewards, **named)
    without = {name for x in run_training(config, tmp_path / "numbers").history for name in x}
    assert not {name for name in without if "accuracy" in name}
    written |= without
    assert {name for name in written | more if not _documented(name)} == {"step"}
    groups = "reward|eval|policy|objective|tokens|time|train|response|sampler|advantage|clip|prob"
    effects = {f"tokens/{effect}" for effect in EFFECTS}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(rf"`((?:{groups})/\w+)`", text))
        assert named <= written | effects, f"{page.name}: {named - written - effects}"


def test_no_page_contains_a_local_path():
    home = os.sep + "root" + os.sep
    for page in PAGES:
        assert home not in page.read_text(encoding="utf-8")


def test_the_readme_and_the_first_page_state_the_same_limits():
    """Up to the next heading or block."""
    texts = [page.read_text(encoding="utf-8") for page in (README, ROOT / "docs" / "index.md")]
    limits = [text.partition("\n## Limits of this version\n")[2] for text in texts]
    readme, first_page = (re.split(r"\n(?:##|```)", text)[0].strip() for text in limits)
    assert len(readme) > 100
    assert readme == first_page


def test_the_reward_of_the_first_own_run_says_which_responses_are_right() -> None:
    [text] = [
        text for _, text, _ in blocks(ROOT / "docs" / "start.md") if "def first_number" in text
    ]
    names: dict[str, Any] = {"__name__": "sums"}
    exec(text, names)
    assert names["first_number"](" 57 and 6", "57") == {"reward": 1.0, "correct": True}
    assert names["first_number"]("none", "57") == {"reward": 0.0, "correct": False}


def test_the_tests_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"(?:tests|docs)/[\w/]+\.(?:py|yaml)", text)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).is_file()] == []
