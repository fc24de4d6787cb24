"""A result as columns, for tables: what CSV and Parquet hold."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from streamrunner.sinks.outputs.record import ResultRecord, line_id


class FlatResult(NamedTuple):
    """One row of a table. `text` and `finish_reason` are those of the first choice; `response` is the whole body, JSON.

    completion_tokens and the like are null where a row has no response.
    """

    id: str
    custom_id: str
    row: int
    status: str
    text: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    error_code: str | None
    error_message: str | None
    response: str | None


COLUMNS = FlatResult._fields


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct, frozen=True):
    code: str | None = None
    message: str | None = None


class _Body(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage = _Usage()
    error: _Error = _Error()


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_error = msgspec.json.Decoder(_Error | None).decode
_decode_text = msgspec.json.Decoder(str).decode
_NO_CHOICE, _NO_DETAILS = _Choice(), _PromptDetails()


def flatten(owner: bytes, record: ResultRecord) -> FlatResult:
    """The columns of a result."""
    body = _decode_body(record.body) if record.body else _Body()
    choice = body.choices[0] if body.choices else _NO_CHOICE
    error: Any = _decode_error(record.error) or body.error
    return FlatResult(
        id=line_id(owner, record.row, record.attempt).decode(),
        custom_id=_decode_text(record.custom_id),
        row=record.row,
        status=record.status,
        text=choice.text if choice.message is None else choice.message.content,
        finish_reason=choice.finish_reason,
        prompt_tokens=body.usage.prompt_tokens,
        cached_tokens=(body.usage.prompt_tokens_details or _NO_DETAILS).cached_tokens,
        completion_tokens=body.usage.completion_tokens,
        error_code=error.code,
        error_message=error.message,
        response=record.body.decode() or None,
    )
