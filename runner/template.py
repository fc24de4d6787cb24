"""The row template of `input.prompt`: Jinja in a sandbox, a column that a row lacks is an error and not an empty
text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template

# A row's prompt never needs more; a template in a loop would fill the memory.
MAX_RENDERED = 16 << 20


def check_template(source: str) -> str:
    """The template, if Jinja can read it. Raises ValueError."""
    from jinja2 import TemplateSyntaxError

    try:
        _compiled(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"it is no valid Jinja template: {error.message} (line {error.lineno})") from error
    except (RecursionError, SyntaxError) as error:  # from Python, which Jinja makes of it
        raise ValueError("its blocks or brackets are nested too deep") from error
    return source


def template_columns(source: str) -> frozenset[str]:
    """The columns that a template may ask a row for."""
    from jinja2 import meta

    environment = _compiled(source).environment
    return frozenset(meta.find_undeclared_variables(environment.parse(source)))


def render(source: str, columns: Mapping[str, Any]) -> str:
    """A row's prompt. Raises RunnerError (`template_error`) that names the missing column or the fault."""
    from jinja2 import UndefinedError

    try:
        return _bounded(_compiled(source), columns)
    except UndefinedError as error:
        have = ", ".join(sorted(columns)) or "none"
        raise RunnerError("template_error", f"input.prompt: {error.message}; the row has the columns {have}") from error
    except RunnerError:
        raise
    except Exception as error:  # a filter raises whatever it likes, and only this row is lost
        raise RunnerError("template_error", f"input.prompt cannot be filled in: {error}") from error


def _bounded(template: Template, columns: Mapping[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    # What `generate` does, without a generator around it and a traceback made for every fault.
    for part in template.root_render_func(template.new_context(dict(columns))):
        parts.append(part)
        size += len(part)
        if size > MAX_RENDERED:
            raise RunnerError("template_error", f"input.prompt makes a prompt of more than {MAX_RENDERED >> 20} MiB")
    return "".join(parts)


def _no_null(value: Any) -> Any:
    """Jinja would write the word None into the prompt."""
    if value is None:
        raise RunnerError("template_error", "input.prompt: a column of this row is null: write {{ column or '' }}")
    return value


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # keep_trailing_newline: what is written is the prompt; nothing is a page, so nothing is escaped.
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=_no_null
    )
    template = environment.from_string(source)
    # A chain of two mappings by default, which every row would have to copy name by name.
    template.globals = dict(template.globals)
    return template
