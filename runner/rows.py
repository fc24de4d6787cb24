"""One line of input as a row to run, or as the reason why it cannot run. A bad row never harms another.

Accepted: OpenAI batch lines (`custom_id, method, url, body`) and plain objects (`prompt`, `messages`, or the columns
of the job's template, with sampling settings beside them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import msgspec

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.strict_json import parse_strict
from streamrunner.runner.template import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrunner.runner.spec import JobSpec

MAX_LINE_BYTES = 16 << 20
MAX_CUSTOM_ID = 512
_MAX_MESSAGE = 500

CHAT_URL, COMPLETION_URL = "/v1/chat/completions", "/v1/completions"
_KIND_OF_URL: dict[str, Literal["chat", "completion"]] = {CHAT_URL: "chat", COMPLETION_URL: "completion"}

# Settings a row may have, under the name the engine gives them.
_SAMPLING = {
    name: name
    for name in (
        "temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "stop", "stop_token_ids", "seed", "n",
        "include_stop_str_in_output", "ignore_eos",
    )
} | {"max_completion_tokens": "max_tokens"}  # fmt: skip
_FLOATS, _BOOLS = ("temperature", "top_p", "min_p"), ("include_stop_str_in_output", "ignore_eos")
# What a chat may tell its template, under vLLM's names.
_CHAT_OPTIONS: dict[str, type] = {
    "add_generation_prompt": bool, "continue_final_message": bool, "documents": list, "chat_template_kwargs": dict,
}  # fmt: skip
_NOT_TEMPLATE_KWARGS = {"messages", "tools", "chat_template", *_CHAT_OPTIONS}
# OpenAI's parameters that say nothing about the output.
_HARMLESS = frozenset({"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
# Parameters that are fine as long as they ask for what happens anyway.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "response_format": ({"type": "text"}, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": ({}, None),
    "echo": (False, None),
    "best_of": (1, None),
    "suffix": (None,),
    "tool_choice": ("auto", None),
    "parallel_tool_calls": (True, None),
}


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row cannot run, in the shape of OpenAI's `errors.data[]`; `line` is the physical one, from 1."""

    index: int
    line: int
    custom_id: str | None
    code: str
    message: str
    param: str | None = None


class Row(msgspec.Struct, frozen=True):
    """A row that may run. `overrides` are sampling settings under the engine's names, `logprobs` among them;
    `chat_options` arguments of `Tokenizer.apply_chat_template`.

    A Struct because a million of them are made at submit, five times as fast as a dataclass is.
    """

    index: int
    custom_id: str
    kind: Literal["chat", "completion"]
    messages: tuple[Mapping[str, Any], ...] = ()
    prompt: str = ""
    tools: tuple[Mapping[str, Any], ...] | None = None
    overrides: Mapping[str, Any] = msgspec.field(default_factory=dict)
    chat_options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class _Bad(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def parse_row(raw: bytes, index: int, line: int, spec: JobSpec) -> Row | RowError:
    """Read one line. Never raises for what the line holds."""
    custom_id: str | None = None
    try:
        value = _object(raw)
        custom_id = _custom_id(value, index, required=_is_batch_line(value, spec))
        return _row(value, index, custom_id, spec)
    except _Bad as bad:
        return RowError(index, line, custom_id, bad.code, _cut(bad.message), bad.param and _cut(bad.param))
    except RunnerError as error:
        return RowError(index, line, custom_id, error.code, _cut(error.message), "prompt")


def _cut(message: str) -> str:
    """A message is to be read: what it quotes of a row may be megabytes."""
    return message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 1]}…"


def _is_batch_line(value: Mapping[str, Any], spec: JobSpec) -> bool:
    """Whether an object is meant as an OpenAI batch line: as the job's format says, or by its look."""
    form = spec.input.format if spec.input is not None else "auto"
    return form == "openai" or (form == "auto" and ("body" in value or "url" in value or "method" in value))


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_LINE_BYTES:
        raise _Bad("line_too_long", f"the line has {len(raw)} bytes, the limit is {MAX_LINE_BYTES}: split the row")
    try:
        value = parse_strict(raw)
    except UnicodeDecodeError as error:
        raise _Bad("not_utf8", f"byte {error.start} is not UTF-8: save the file as UTF-8") from error
    except ValueError as error:
        raise _Bad("invalid_json_line", f"this is no JSON object: {error}") from error
    if not isinstance(value, dict):
        raise _Bad("invalid_json_line", f"this is a JSON {_type_name(value)}, a row must be an object")
    return value


def _custom_id(value: Mapping[str, Any], index: int, *, required: bool) -> str:
    if "custom_id" not in value:
        if required:
            raise _Bad("missing_custom_id", "a batch line needs a `custom_id`", "custom_id")
        return f"row-{index}"
    custom_id = value["custom_id"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise _Bad("missing_custom_id", f"`custom_id` must be a string of 1 to {MAX_CUSTOM_ID} characters", "custom_id")
    return custom_id


def _row(value: dict[str, Any], index: int, custom_id: str, spec: JobSpec) -> Row:
    if _is_batch_line(value, spec):
        kind, body = _batch_request(value)
        return _request(kind, body, index, custom_id, spec)
    template = spec.input.prompt if spec.input is not None else None
    if template is not None:
        return Row(index, custom_id, spec.task or "completion", *_templated(render(template, value), spec.task))
    plain = {name: one for name, one in value.items() if name != "custom_id"}
    if ("messages" in plain) == ("prompt" in plain):
        raise _Bad(
            "invalid_request", "a row needs either `messages` or `prompt` (or the job a template, `input.prompt`)"
        )
    return _request("chat" if "messages" in plain else "completion", plain, index, custom_id, spec)


def _templated(text: str, task: str | None) -> tuple[tuple[Mapping[str, Any], ...], str]:
    _nonempty(text)
    return (({"role": "user", "content": text},), "") if task == "chat" else ((), text)


def _batch_request(value: dict[str, Any]) -> tuple[Literal["chat", "completion"], dict[str, Any]]:
    if value.get("method", "POST") != "POST":
        raise _Bad("invalid_method", f"`method` is {value['method']!r}, it must be POST", "method")
    url = value.get("url")
    if not isinstance(url, str) or url not in _KIND_OF_URL:
        raise _Bad("invalid_url", f"`url` is {url!r}, it must be {CHAT_URL} or {COMPLETION_URL}", "url")
    body = value.get("body")
    if not isinstance(body, dict):
        raise _Bad("missing_body", "a batch line needs a `body`, a JSON object", "body")
    return _KIND_OF_URL[url], body


def _request(
    kind: Literal["chat", "completion"], body: dict[str, Any], index: int, custom_id: str, spec: JobSpec
) -> Row:
    if spec.task is not None and spec.task != kind:
        raise _Bad("url_mismatch", f"this is a {kind} row in a job with `task: {spec.task}`", "task")
    overrides = _overrides(kind, body)
    if kind == "chat":
        options = _chat_options(body)
        return Row(
            index, custom_id, kind,
            messages=_messages(body), tools=_tools(body), overrides=overrides, chat_options=options,
        )  # fmt: skip
    return Row(index, custom_id, kind, prompt=_prompt(body), overrides=overrides)


def _messages(body: dict[str, Any]) -> tuple[Mapping[str, Any], ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _Bad("invalid_messages", "`messages` must be a list with at least one message", "messages")
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _Bad("invalid_messages", f"`{where}` must be an object with a `role`", where)
        content = message.get("content")
        if not _is_content(content) and not (content is None and message.get("tool_calls")):
            other = next((part for part in _others(content)), "")
            raise _Bad(
                "invalid_messages",
                f"`{where}.content` must be text or a list of text parts{other and f', not of {other}'}",
                f"{where}.content",
            )
    return tuple(messages)


def _is_content(content: Any) -> bool:
    if isinstance(content, str):
        return True
    parts = content if isinstance(content, list) else []
    return bool(parts) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
    )


def _others(content: Any) -> list[str]:
    """Kinds of parts that are no text: images, sounds, files."""
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return [part["type"] for part in parts if isinstance(part.get("type"), str) and part["type"] != "text"]


def _chat_options(body: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, kind in _CHAT_OPTIONS.items():
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, kind):
            wanted = {bool: "true or false", list: "a list", dict: "an object"}[kind]
            raise _Bad("invalid_parameter", f"`{name}` must be {wanted}, this is a {_type_name(value)}", name)
        options[name] = value
    variables: dict[str, Any] = options.pop("chat_template_kwargs", {})
    reserved = sorted(_NOT_TEMPLATE_KWARGS & variables.keys())
    if reserved:
        what = f"`{reserved[0]}` is no variable of a template: write it beside"
        raise _Bad("invalid_parameter", what, "chat_template_kwargs")
    return {**options, **variables}


def _tools(body: dict[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _Bad("invalid_parameter", "`tools` must be a list of objects", "tools")
    return tuple(tools)


def _prompt(body: dict[str, Any]) -> str:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise _Bad("invalid_request", f"`prompt` must be a string, this is a {_type_name(prompt)}", "prompt")
    return _nonempty(prompt)


def _nonempty(prompt: str) -> str:
    if not prompt:
        raise _Bad("empty_prompt", "`prompt` is empty: give the model at least one character", "prompt")
    return prompt


def _overrides(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for name, value in body.items():
        if name in ("messages", "prompt", "tools") or name in _HARMLESS or (kind == "chat" and name in _CHAT_OPTIONS):
            continue
        if name in _SAMPLING:
            if value is not None:
                overrides[_SAMPLING[name]] = _setting(name, value)
        elif name not in ("logprobs", "top_logprobs"):
            _check_default(name, value)
    logprobs = _chat_logprobs(body) if kind == "chat" else _completion_logprobs(body)
    return overrides if logprobs is None else {**overrides, "logprobs": logprobs}


def _setting(name: str, value: Any) -> Any:
    if name == "stop":
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise _Bad("invalid_parameter", "`stop` must be a string or a list of strings", name)
        return tuple(stops)
    if name == "stop_token_ids":
        if not isinstance(value, list) or not all(_is_int(one) for one in value):
            raise _Bad("invalid_parameter", "`stop_token_ids` must be a list of whole numbers", name)
        return tuple(value)
    fits = (
        isinstance(value, bool) if name in _BOOLS else _is_int(value) or (name in _FLOATS and isinstance(value, float))
    )
    if not fits:
        wanted = "true or false" if name in _BOOLS else "a number" if name in _FLOATS else "a whole number"
        raise _Bad("invalid_parameter", f"`{name}` must be {wanted}, this is a {_type_name(value)}", name)
    return value


def _check_default(name: str, value: Any) -> None:
    if name not in _DEFAULTS:
        raise _Bad("unsupported_parameter", f"`{name}` is no parameter this engine knows: remove it", name)
    if value not in _DEFAULTS[name]:
        raise _Bad("unsupported_parameter", f"`{name}` is not supported by this engine yet: remove it", name)


def _chat_logprobs(body: dict[str, Any]) -> int | None:
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if wanted is not None and not isinstance(wanted, bool):
        raise _Bad("invalid_parameter", "`logprobs` of a chat must be true or false", "logprobs")
    if top is not None and (not _is_int(top) or not wanted):
        raise _Bad("invalid_parameter", "`top_logprobs` must be a whole number beside `logprobs: true`", "top_logprobs")
    return (top or 0) if wanted else None


def _completion_logprobs(body: dict[str, Any]) -> int | None:
    wanted = body.get("logprobs")
    if wanted is not None and not _is_int(wanted):
        raise _Bad("invalid_parameter", "`logprobs` of a completion must be a whole number", "logprobs")
    return wanted


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _type_name(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
