"""Fill in Jinja templates of prompts, in Jinja's sandbox."""

import functools
import json

from jinja2 import StrictUndefined, Template, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlobj.base.errors import ConfigError, reported
from rlobj.data.problems import Problem

_SANDBOX = ImmutableSandboxedEnvironment(undefined=StrictUndefined)


def fill_template(setting: str, template: str, problem: Problem, feedback: str = "") -> str:
    """The text of a template for a problem.

    A template reads the columns as plain data, and no attribute that leads out of them. Nothing
    limits its time and memory.

    Args:
        setting: that has the template, for the message.
        template: its text.
        problem: has the columns.
        feedback: of the reward.

    Raises:
        ConfigError: it is no template, reads a column that the problem lacks, or fails.
    """
    with reported(ConfigError, f"{setting} is no template", Exception):  # also RecursionError
        compiled, read = _compiled(template)
    answer = {"answer": problem.answer} if problem.answer else {}
    columns = {**problem.extra, "prompt": problem.prompt, **answer, "feedback": feedback}
    plain = json.dumps({name: columns[name] for name in read if name in columns}, default=str)
    what = f"{setting} cannot be filled in for problem {problem.id}"
    advice = f". Its columns are {', '.join(columns)}"
    with reported(ConfigError, what, Exception, advice=advice):  # a template fails in many ways
        return compiled.render(json.loads(plain))


@functools.lru_cache
def _compiled(template: str) -> tuple[Template, list[str]]:
    tree = _SANDBOX.parse(template)
    return _SANDBOX.from_string(template), sorted(meta.find_undeclared_variables(tree))
