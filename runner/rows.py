"""One line of input as a row to run, or as the reason why it cannot run. A bad row never harms another.

Accepted: OpenAI batch lines (`custom_id, method, url, body`) and plain objects: `prompt` or `messages` with sampling
settings beside them, or the columns of the job's template.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.lines import MAX_LINE_BYTES
from streamrunner.runner.row_sampling import BadRow, sampling_overrides, type_name
from streamrunner.runner.strict_json import parse_strict
from streamrunner.runner.template import render
from streamrunner.sinks.wire import encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrunner.runner.spec import JobSpec

MAX_CUSTOM_ID = 512
_MAX_MESSAGE = 500

# Begins a line that stands for a row which could not even be written as JSON; no JSON text begins so.
_REFUSED = b"\0"
RefusedCode = Literal["invalid_csv_row", "invalid_request", "not_utf8"]
# OpenAI's other routes of batches, which this engine cannot run.
_OTHER_URLS = frozenset({"/v1/embeddings", "/v1/responses", "/v1/moderations", "/v1/images/generations"})

CHAT_URL, COMPLETION_URL = "/v1/chat/completions", "/v1/completions"
_KIND_OF_URL: dict[str, Literal["chat", "completion"]] = {CHAT_URL: "chat", COMPLETION_URL: "completion"}

# What a chat may tell its template, under vLLM's names.
_CHAT_OPTIONS: dict[str, type] = {
    "add_generation_prompt": bool, "continue_final_message": bool, "documents": list, "chat_template_kwargs": dict,
}  # fmt: skip
_NOT_TEMPLATE_KWARGS = {"messages", "tools", "chat_template", *_CHAT_OPTIONS}


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row cannot run, in the shape of OpenAI's `errors.data[]`; `line` is the physical one, from 1, of `file`
    where the input has several.
    """

    index: int
    line: int
    custom_id: str | None
    code: str
    message: str
    param: str | None = None
    file: str | None = None

    @property
    def where(self) -> str:
        """As a person is told it."""
        return f"line {self.line}" if self.file is None else f"{self.file} line {self.line}"


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


def parse_row(raw: bytes, index: int, line: int, spec: JobSpec) -> Row | RowError:
    """Read one line. Never raises for what the line holds."""
    custom_id: str | None = None
    try:
        value = _object(raw)
        custom_id = _custom_id(value, index, required=_is_batch_line(value, spec))
        return _row(value, index, custom_id, spec)
    except BadRow as bad:
        return RowError(index, line, custom_id, bad.code, _cut(bad.message), bad.param and _cut(bad.param))
    except RunnerError as error:
        return RowError(index, line, custom_id, error.code, _cut(error.message), "prompt")


def _cut(message: str) -> str:
    """A message is to be read: what it quotes of a row may be megabytes."""
    return message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 1]}…"


def _is_batch_line(value: Mapping[str, Any], spec: JobSpec) -> bool:
    """Whether an object is meant as an OpenAI batch line: as the job's format says, or by its look.

    Columns of a template may have these names as well.
    """
    form = spec.input.format if spec.input is not None else "auto"
    if form in ("openai", "jsonl"):
        return form == "openai"
    if spec.input is not None and spec.input.prompt is not None:
        return isinstance(value.get("body"), dict) and str(value.get("url")).startswith("/v1/")
    return "body" in value or "url" in value or "method" in value


def refused_line(code: RefusedCode, message: str) -> bytes:
    """A line that fails alone, for a row that its file's format spoils."""
    return _REFUSED + encode_json([code, message])


def _check_refused(raw: bytes) -> None:
    try:
        code, message = msgspec.json.decode(raw[1:], type=tuple[RefusedCode, str])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    raise BadRow(code, message)


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_LINE_BYTES:
        raise BadRow("line_too_long", f"the line is longer than {MAX_LINE_BYTES} bytes: split the row")
    if raw.startswith(_REFUSED):
        _check_refused(raw)
    try:
        value = parse_strict(raw)
    except UnicodeDecodeError as error:
        raise BadRow("not_utf8", f"byte {error.start} is not UTF-8: save the file as UTF-8") from error
    except ValueError as error:
        raise BadRow("invalid_json_line", f"this is no JSON object: {error}") from error
    if not isinstance(value, dict):
        raise BadRow("invalid_json_line", f"this is a JSON {type_name(value)}, a row must be an object")
    return value


def _custom_id(value: Mapping[str, Any], index: int, *, required: bool) -> str:
    if "custom_id" not in value:
        if required:
            raise BadRow("missing_custom_id", "a batch line needs a `custom_id`", "custom_id")
        return f"row-{index}"
    custom_id = value["custom_id"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise BadRow(
            "missing_custom_id", f"`custom_id` must be a string of 1 to {MAX_CUSTOM_ID} characters", "custom_id"
        )
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
        raise BadRow(
            "invalid_request", "a row needs either `messages` or `prompt` (or the job a template, `input.prompt`)"
        )
    return _request("chat" if "messages" in plain else "completion", plain, index, custom_id, spec)


def _templated(text: str, task: str | None) -> tuple[tuple[Mapping[str, Any], ...], str]:
    _nonempty(text)
    return (({"role": "user", "content": text},), "") if task == "chat" else ((), text)


def _batch_request(value: dict[str, Any]) -> tuple[Literal["chat", "completion"], dict[str, Any]]:
    if value.get("method", "POST") != "POST":
        raise BadRow("invalid_method", f"`method` is {value['method']!r}, it must be POST", "method")
    url = value.get("url")
    if isinstance(url, str) and url in _OTHER_URLS:
        raise BadRow("unsupported_endpoint", f"`{url}` cannot run here yet: {CHAT_URL} and {COMPLETION_URL} can", "url")
    if not isinstance(url, str) or url not in _KIND_OF_URL:
        raise BadRow("invalid_url", f"`url` is {url!r}, it must be {CHAT_URL} or {COMPLETION_URL}", "url")
    body = value.get("body")
    if not isinstance(body, dict):
        raise BadRow("missing_body", "a batch line needs a `body`, a JSON object", "body")
    return _KIND_OF_URL[url], body


def _request(
    kind: Literal["chat", "completion"], body: dict[str, Any], index: int, custom_id: str, spec: JobSpec
) -> Row:
    if spec.task is not None and spec.task != kind:
        raise BadRow("url_mismatch", f"this is a {kind} row in a job with `task: {spec.task}`", "task")
    if kind == "completion":
        return Row(index, custom_id, kind, prompt=_prompt(body), overrides=sampling_overrides(kind, body))
    options: dict[str, Any] = {}
    settings = body
    if not _CHAT_OPTIONS.keys().isdisjoint(body):
        options = _chat_options(body)
        settings = {name: value for name, value in body.items() if name not in _CHAT_OPTIONS}
    overrides = sampling_overrides(kind, settings)
    return Row(
        index, custom_id, kind,
        messages=_messages(body), tools=_tools(body), overrides=overrides, chat_options=options,
    )  # fmt: skip


def _messages(body: dict[str, Any]) -> tuple[Mapping[str, Any], ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRow("invalid_messages", "`messages` must be a list with at least one message", "messages")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            where = f"messages[{place}]"
            raise BadRow("invalid_messages", f"`{where}` must be an object with a `role`", where)
        content = message.get("content")
        if not isinstance(content, str):
            _check_parts(content, message, f"messages[{place}].content")
    return tuple(messages)


def _check_parts(content: Any, message: Mapping[str, Any], where: str) -> None:
    if _is_parts(content) or (content is None and message.get("tool_calls")):
        return
    other = next((part for part in _others(content)), "")
    what = f"`{where}` must be text or a list of text parts{other and f', not of {other}'}"
    raise BadRow("invalid_messages", what, where)


def _is_parts(content: Any) -> bool:
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
            raise BadRow("invalid_parameter", f"`{name}` must be {wanted}, this is a {type_name(value)}", name)
        options[name] = value
    variables: dict[str, Any] = options.pop("chat_template_kwargs", {})
    reserved = sorted(_NOT_TEMPLATE_KWARGS & variables.keys())
    if reserved:
        what = f"`{reserved[0]}` is no variable of a template: write it beside"
        raise BadRow("invalid_parameter", what, "chat_template_kwargs")
    return {**options, **variables}


def _tools(body: dict[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRow("invalid_parameter", "`tools` must be a list of objects", "tools")
    return tuple(tools)


def _prompt(body: dict[str, Any]) -> str:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise BadRow("invalid_request", f"`prompt` must be a string, this is a {type_name(prompt)}", "prompt")
    return _nonempty(prompt)


def _nonempty(prompt: str) -> str:
    if not prompt:
        raise BadRow("empty_prompt", "`prompt` is empty: give the model at least one character", "prompt")
    return prompt
