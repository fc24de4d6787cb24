"""Secrets by reference: `${NAME}` stands in an address or a job file, and its value is looked up when it is needed.

So whatever is logged, printed or put on record holds the name alone.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def resolve_secrets(text: str, where: str, *, in_url: bool = False, environment: Mapping[str, str] = os.environ) -> str:
    """Put the values of environment variables in the place of their `${NAME}`.

    where: what holds the text, for the message. in_url: percent-encode the values, so that any password fits.
    Raises SinkError secret_missing for a variable that is not set or empty, and for what is no name.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        value = environment.get(name, "") if _NAME.fullmatch(name) else ""
        if not value:
            raise _missing(name, where)
        return quote(value, safe="") if in_url else value

    return _REFERENCE.sub(value_of, text)


def is_reference(text: str) -> bool:
    """Whether a text is nothing but one reference."""
    match = _REFERENCE.fullmatch(text)
    return match is not None and _NAME.fullmatch(match[1]) is not None


def _missing(name: str, where: str) -> SinkError:
    if not _NAME.fullmatch(name):
        reason = "between the braces goes the name of an environment variable: letters, digits and _"
    else:
        reason = f"the environment variable {name} is not set here: export {name}=… and run the same command again"
    return SinkError("secret_missing", f"{where} refers to ${{{name}}}, but {reason}")
