"""From pydantic's findings to sentences that say what to write instead."""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

_SHOWN = 60
_PLACE = re.compile(r"\[\d+\]")
_CLOSE = 0.6
_MUST_BE = {
    "int_type": "write a whole number",
    "int_from_float": "write a whole number",
    "float_type": "write a number",
    "finite_number": "write a finite number",
    "bool_type": "write true or false",
    "string_type": "write text (in quotes, if YAML takes it for something else)",
    "tuple_type": "write a list",
    "model_type": "write `key: value` lines or {{key: value}}",
    "dict_type": "write `key: value` lines or {{key: value}}",
    "string_unicode": "write text in UTF-8",
    "string_too_short": "write something",
    "string_too_long": "write at most {max_length} characters",
    "greater_than_equal": "write at least {ge}",
    "less_than_equal": "write at most {le}",
}
_NUMBERS: dict[str, type[int | float]] = {"int_type": int, "float_type": float}
_REMEDIES = {"model": "a hub id, a folder, a .gguf file or an installed model package"}
_CREDENTIALS = re.compile(r"://[^/@\s]*@")


def describe_problems(error: ValidationError, model: type[BaseModel]) -> tuple[str, list[str]]:
    """A stable code (`unknown_key` or `invalid_spec`) and one sentence per problem."""
    details = error.errors(include_url=False)
    unknown = any(one["type"] == "extra_forbidden" for one in details)
    sentences = [_sentence(one, model) for one in details]
    return ("unknown_key" if unknown else "invalid_spec"), list(dict.fromkeys(sentences))


def schema_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a job file with its path: `sampling`, `sampling.top_p`, …"""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for part in (field.annotation, *get_args(field.annotation)):
            if hasattr(part, "model_fields"):
                yield from schema_keys(part, f"{prefix}{name}.")


def closest_key(key: str, model: type[BaseModel]) -> str | None:
    """The key that was probably meant, wherever it belongs; one in the same section wins a tie."""
    section, _, name = _PLACE.sub("", key).rpartition(".")

    def likeness(candidate: str) -> float:
        theirs, _, last = candidate.rpartition(".")
        same = difflib.SequenceMatcher(None, name.lower(), last.lower()).ratio()
        return same + (0.1 if theirs == section else 0.0)

    best = max(schema_keys(model), key=likeness)
    return best if likeness(best) >= _CLOSE else None


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    key, kind = _key(detail["loc"]), detail["type"]
    if kind == "extra_forbidden":
        return _unknown(key, model)
    if kind == "missing":
        remedy = f": {_REMEDIES[key]}" if key in _REMEDIES else ""
        return f"`{key}` is missing{remedy}"
    if kind in ("engine_refuses", "rows", "outputs"):
        return detail["msg"]
    if kind == "invalid_key":
        return f"a key is {_shown(detail['input'])}: write text (in quotes, if YAML takes it for something else)"
    return f"`{key}` is {_shown(detail['input'])}: {_remedy(detail)}"


def _remedy(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "literal_error":
        return f"write {context['expected'].replace(chr(39), '')}"
    if kind in _NUMBERS and (number := _as_number(detail["input"], _NUMBERS[kind])) is not None:
        return f"write it as {number}"
    if kind in _MUST_BE:
        return _MUST_BE[kind].format_map(context)
    return _lower_first(detail["msg"].removeprefix("Value error, "))


def _as_number(value: Any, make: type[int | float]) -> float | None:
    """The number a text was meant as: YAML 1.1 takes 1e-3 for one, and quotes make one of 5."""
    try:
        number = make(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _unknown(key: str, model: type[BaseModel]) -> str:
    meant = closest_key(key, model)
    if meant == key:  # with the dot in it
        section, _, name = key.rpartition(".")
        return f"`{key}` is one key here: write `{section}: {{{name}: …}}`"
    return f"there is no key `{key}`" + (
        f": did you mean `{meant}`?" if meant else ": docs/job-yaml.md lists those there are"
    )


def _key(loc: tuple[int | str, ...]) -> str:
    """`outputs[0].path`; pydantic's own marks for branches of a union are no part of it."""
    key = ""
    for part in loc:
        if isinstance(part, int):
            key += f"[{part}]"
        elif not (part.startswith(("literal[", "function-", "constrained-")) or (key and part in ("bool", "int"))):
            key += f".{_printable(part)}" if key else _printable(part)
    return key


def _printable(text: str) -> str:
    """With escapes for line ends and the like, which would cut a problem's sentence in two."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "empty", True: "true", False: "false"}[value]
    text = _CREDENTIALS.sub("://***@", repr(value))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
