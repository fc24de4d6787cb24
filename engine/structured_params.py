"""What form a text must have: vLLM's StructuredOutputsParams."""

from __future__ import annotations

import json as jsons
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from streamrunner.engine.errors import EngineError

FORMS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one of json, regex, choice, grammar, json_object. Raises EngineError (`invalid_params`).

    json: a JSON schema, as an object or as text; kept as text. regex: of the whole text, Rust's syntax, no look-around.
    choice: one of these strings. grammar: GBNF (as llama.cpp's, from `root`) or Lark as llguidance reads it (from
    `start`). json_object: any JSON object. disable_any_whitespace: JSON without optional blanks. whitespace_pattern:
    which blanks JSON may have, as a regex.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in FORMS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise _invalid(f"names {' and '.join(given) or 'none'} of {', '.join(FORMS)}: name exactly one")
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _checked_choice(self.choice))
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(getattr(self, name), bool | None):
                raise _invalid(f"{name} is {type(getattr(self, name)).__name__}, it must be true or false")
        for name in ("regex", "grammar", "whitespace_pattern"):
            if not isinstance(getattr(self, name), str | None):
                raise _invalid(f"{name} is {type(getattr(self, name)).__name__}, it must be text")

    @classmethod
    def of(cls, given: Any) -> StructuredOutputsParams:
        """From an object of the same keys, as job.yaml and rows have it. Raises EngineError (`invalid_params`)."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise _invalid(f"is {type(given).__name__}: give one of {', '.join(FORMS)}")
        known = {field.name for field in fields(cls)}
        for key in given:
            if key not in known:
                raise _invalid(f"has no key {key!r}, only {', '.join(sorted(known))}")
        return cls(**given)


def _schema_text(schema: Any) -> str:
    try:
        found = jsons.loads(schema) if isinstance(schema, str) else schema
        if isinstance(found, Mapping):
            return jsons.dumps(found, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _invalid(f"json is no JSON: {error}") from error
    raise _invalid(f"json is {type(found).__name__}, it must be a JSON schema, an object")


def _checked_choice(choice: Any) -> tuple[str, ...]:
    texts = () if isinstance(choice, str) else tuple(choice)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise _invalid("choice must be a list of strings, none of them empty")
    return texts


def _invalid(what: str) -> EngineError:
    return EngineError("invalid_params", f"structured_outputs {what}", "structured_outputs")
