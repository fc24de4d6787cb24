"""Results in OpenAI's shapes: the response bodies that the `openai` package parses, and what stands around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from streamrunner.sinks.outputs.record import ResultRecord

if TYPE_CHECKING:
    from streamrunner.engine.step import TokenLogprob
    from streamrunner.runner.flight import ChoiceRun, RowRun
    from streamrunner.runner.job import JobContext

# The engine's own faults; everything else is something about the request.
_SERVER_FAULTS = frozenset({"nan_logits", "engine_died"})
# JSON has no -inf; OpenAI's own floor for impossible tokens.
_LOGPROB_FLOOR = -9999.0
_NO_ERROR = b"null"
# Endings with a response body as their payload.
BODY_EVENTS = frozenset({b"request.completed", b"request.failed"})

_encode = msgspec.json.Encoder().encode

TokenText = Callable[[int], str]


class Completed(NamedTuple):
    """A response body as JSON, and the part of its `usage` that the event has too."""

    payload: bytes
    usage: dict[str, int]


def completed_payload(job: JobContext, run: RowRun, token_text: TokenText) -> Completed:
    """The body of a finished row: `chat.completion` or `text_completion`."""
    completion_tokens = sum(len(choice.token_ids) for choice in run.choices)
    prompt_tokens = len(run.prompt_token_ids)
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    is_chat = run.row.kind == "chat"
    make = _chat_choice if is_chat else _text_choice
    body: dict[str, Any] = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{_ulid(job.job_id)}-{run.row.index}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": job.created_s,
        "model": job.spec.model,
        "choices": [make(index, choice, token_text) for index, choice in enumerate(run.choices)],
        "usage": {**usage, "prompt_tokens_details": {"cached_tokens": run.num_cached_tokens}},
    }
    if run.prompt_logprobs is not None:
        scores = _prompt_logprobs(run.prompt_logprobs, token_text)
        # Where vLLM's server puts them: once for a chat, in every choice of a completion.
        for place in [body] if is_chat else body["choices"]:
            place["prompt_logprobs"] = scores
    return Completed(_encode(body), usage)


def failed_payload(error: dict[str, Any]) -> bytes:
    """The body of a row that cannot have a result."""
    kind = "server_error" if error["code"] in _SERVER_FAULTS else "invalid_request_error"
    return _encode(
        {"error": {"message": error["message"], "type": kind, "param": error["param"], "code": error["code"]}}
    )


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class EndingEvent(msgspec.Struct, frozen=True):
    """What a result needs of a terminal event's data; custom_id stays the JSON it was."""

    row: int
    attempt: int
    custom_id: msgspec.Raw
    error: _Error | None = None


decode_ending = msgspec.json.Decoder(EndingEvent).decode


def result_record(kind: bytes, event: EndingEvent, payload: bytes) -> ResultRecord:
    """A row's result from the type and the data of its terminal event, and its payload."""
    custom_id = bytes(event.custom_id)
    if event.error is None:
        return ResultRecord(event.row, event.attempt, custom_id, "completed", 200, payload, _NO_ERROR)
    if kind not in BODY_EVENTS:
        # Cancelled alone: no response, as for rows that share their job's ending.
        status = kind.decode().removeprefix("request.")
        return ResultRecord(event.row, event.attempt, custom_id, status, 0, b"", _encode(event.error))
    status_code = 500 if event.error.code in _SERVER_FAULTS else 400
    return ResultRecord(event.row, event.attempt, custom_id, "failed", status_code, payload, _NO_ERROR)


def ending_record(row: int, attempt: int, custom_id: str, status: str, error: dict[str, Any]) -> ResultRecord:
    """The result of a row that shares the ending of its job: no response, and why."""
    return ResultRecord(row, attempt, _encode(custom_id), status, 0, b"", _encode(error))


def _chat_choice(index: int, choice: ChoiceRun, token_text: TokenText) -> dict[str, Any]:
    content = [_chat_token(token, token_text) for token in choice.logprobs]
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "logprobs": {"content": content, "refusal": None} if content else None,
    }


def _chat_token(token: tuple[TokenLogprob, ...], token_text: TokenText) -> dict[str, Any]:
    sampled, *top = (_chat_logprob(one, token_text) for one in token)
    return {**sampled, "top_logprobs": top}


def _chat_logprob(one: TokenLogprob, token_text: TokenText) -> dict[str, Any]:
    text = token_text(one.token_id)
    return {"token": text, "logprob": _finite(one.logprob), "bytes": list(text.encode())}


def _text_choice(index: int, choice: ChoiceRun, token_text: TokenText) -> dict[str, Any]:
    return {
        "index": index,
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "logprobs": _text_logprobs(choice, token_text) if choice.logprobs else None,
    }


def _text_logprobs(choice: ChoiceRun, token_text: TokenText) -> dict[str, Any]:
    tokens = [token_text(token[0].token_id) for token in choice.logprobs]
    offsets = [0]
    for text in tokens[:-1]:
        offsets.append(offsets[-1] + len(text))
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(token[0].logprob) for token in choice.logprobs],
        "top_logprobs": [
            {token_text(one.token_id): _finite(one.logprob) for one in token[1:]} for token in choice.logprobs
        ],
        "text_offset": offsets,
    }


def _prompt_logprobs(scores: tuple[tuple[TokenLogprob, ...], ...], token_text: TokenText) -> list[Any]:
    """By token id for every prompt token, null for the first."""
    return [None, *({str(one.token_id): _prompt_logprob(one, token_text) for one in token} for token in scores)]


def _prompt_logprob(one: TokenLogprob, token_text: TokenText) -> dict[str, Any]:
    return {"logprob": _finite(one.logprob), "rank": one.rank, "decoded_token": token_text(one.token_id)}


def _finite(logprob: float | None) -> float:
    return _LOGPROB_FLOOR if logprob is None or not logprob > _LOGPROB_FLOOR else logprob


def _ulid(job_id: str) -> str:
    return job_id.removeprefix("job_")
