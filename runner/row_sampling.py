"""How a row is to be sampled: OpenAI's and vLLM's parameters under the engine's names, which checks their ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from streamrunner.engine.errors import EngineError
from streamrunner.engine.structured_params import StructuredOutputsParams

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = tuple[Callable[[Any], bool], str]

# OpenAI's parameters that say nothing about the output.
_HARMLESS = frozenset({"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
_NEEDS_A_LOOK = frozenset({"logprobs", "top_logprobs", "response_format", "structured_outputs"})
_ELSEWHERE = frozenset({"messages", "prompt", "tools"}) | _NEEDS_A_LOOK
_READ_APART = _ELSEWHERE | _HARMLESS
# Parameters that are fine as long as they ask for what happens anyway.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "echo": (False, None),
    "best_of": (1, None),
    "suffix": (None,),
    "tool_choice": ("auto", None),
    "parallel_tool_calls": (True, None),
}


class BadRow(Exception):
    """Why a row cannot run: a code, a message, and the parameter at fault."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def sampling_overrides(kind: Literal["chat", "completion"], body: dict[str, Any]) -> dict[str, Any]:
    """Settings of a request body, as arguments of SamplingParams. Raises BadRow, naming the parameter."""
    overrides: dict[str, Any] = {}
    for name, value in body.items():
        if name in _CHECKS:
            if value is not None:
                overrides[_RENAMED.get(name, name)] = _setting(name, value)
        elif name not in _READ_APART:
            _check_default(name, value)
    if not _NEEDS_A_LOOK.isdisjoint(body):
        overrides.update(_form_and_logprobs(kind, body))
    return overrides


def _form_and_logprobs(kind: Literal["chat", "completion"], body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    form = _form(body)
    if form is not None or body.get("response_format") is not None:
        found["structured_outputs"] = form
    logprobs = _chat_logprobs(body) if kind == "chat" else _completion_logprobs(body)
    return found if logprobs is None else {**found, "logprobs": logprobs}


def is_int(value: Any) -> TypeGuard[int]:
    """Whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def type_name(value: Any) -> str:
    """What JSON calls a value's type."""
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _setting(name: str, value: Any) -> Any:
    if isinstance(value, str) and name in _ONE_OR_MANY:
        value = [value]
    fits, wanted = _CHECKS[name]
    if not fits(value):
        raise BadRow("invalid_parameter", f"`{name}` must be {wanted}, this is a {type_name(value)}", name)
    return tuple(value) if isinstance(value, list) else value


def _is_number(value: Any) -> bool:
    return is_int(value) or isinstance(value, float)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_ints(value: Any) -> bool:
    return isinstance(value, list) and all(is_int(one) for one in value)


def _is_biases(value: Any) -> bool:
    return isinstance(value, dict) and all(
        token.isascii() and token.isdecimal() and _is_number(bias) for token, bias in value.items()
    )


_INT: Check = (lambda value: is_int(value) and abs(value) < 1 << 63, "a whole number of at most 63 bits")
_NUMBER: Check = (_is_number, "a number")
_BOOL: Check = (lambda value: isinstance(value, bool), "true or false")
_TEXTS: Check = (_is_texts, "a string or a list of strings")
_INTS: Check = (_is_ints, "a list of whole numbers")
_BIASES: Check = (_is_biases, "an object of token ids and numbers")

_CHECKS: dict[str, Check] = {
    "n": _INT, "top_k": _INT, "max_tokens": _INT, "max_completion_tokens": _INT, "min_tokens": _INT, "seed": _INT,
    "prompt_logprobs": _INT, "temperature": _NUMBER, "top_p": _NUMBER, "min_p": _NUMBER, "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER, "repetition_penalty": _NUMBER, "include_stop_str_in_output": _BOOL,
    "ignore_eos": _BOOL, "stop": _TEXTS, "bad_words": _TEXTS, "stop_token_ids": _INTS, "allowed_token_ids": _INTS,
    "logit_bias": _BIASES,
}  # fmt: skip
_ONE_OR_MANY = ("stop", "bad_words")
_RENAMED = {"max_completion_tokens": "max_tokens"}
# Every name beside the prompt that means something in a row.
ROW_SETTINGS = frozenset(_CHECKS) | frozenset(_DEFAULTS) | _HARMLESS | (_ELSEWHERE - {"messages", "prompt", "tools"})


def _check_default(name: str, value: Any) -> None:
    if name not in _DEFAULTS:
        raise BadRow("unsupported_parameter", f"`{name}` is no parameter this engine knows: remove it", name)
    if value not in _DEFAULTS[name]:
        raise BadRow("unsupported_parameter", f"`{name}` is not supported by this engine yet: remove it", name)


def _form(body: dict[str, Any]) -> StructuredOutputsParams | None:
    """OpenAI's response_format or vLLM's structured_outputs."""
    wanted, asked = _response_form(body.get("response_format")), body.get("structured_outputs")
    if wanted is not None and asked is not None:
        raise BadRow("invalid_parameter", "give `response_format` or `structured_outputs`, not both", "response_format")
    name = "response_format" if asked is None else "structured_outputs"
    try:
        given = wanted if asked is None else asked
        return None if given is None else StructuredOutputsParams.of(given)
    except EngineError as error:
        raise BadRow("invalid_parameter", error.message.replace("structured_outputs", f"`{name}`", 1), name) from error


def _response_form(wanted: Any) -> dict[str, Any] | None:
    kind = wanted.get("type") if isinstance(wanted, dict) else wanted
    if kind is None or kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    named = wanted.get("json_schema") if isinstance(wanted, dict) and kind == "json_schema" else None
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise BadRow(
            "invalid_parameter",
            "`response_format` must have a `type`: text, json_object, or json_schema with `json_schema.schema`",
            "response_format",
        )
    return {"json": named["schema"]}


def _chat_logprobs(body: dict[str, Any]) -> int | None:
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if wanted is not None and not isinstance(wanted, bool):
        raise BadRow("invalid_parameter", "`logprobs` of a chat must be true or false", "logprobs")
    if top is not None and (not is_int(top) or not wanted):
        raise BadRow(
            "invalid_parameter", "`top_logprobs` must be a whole number beside `logprobs: true`", "top_logprobs"
        )
    return (top or 0) if wanted else None


def _completion_logprobs(body: dict[str, Any]) -> int | None:
    wanted = body.get("logprobs")
    if wanted is not None and not is_int(wanted):
        raise BadRow("invalid_parameter", "`logprobs` of a completion must be a whole number", "logprobs")
    return wanted
