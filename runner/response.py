"""Results in OpenAI's shapes: response bodies, batch output lines. What the `openai` package parses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from streamrunner.engine.step import TokenLogprob
    from streamrunner.runner.flight import ChoiceRun, RowRun
    from streamrunner.runner.job import JobContext

# The engine's own faults; everything else is something about the request.
_SERVER_FAULTS = frozenset({"nan_logits", "engine_died"})
# JSON has no -inf; OpenAI's own floor for impossible tokens.
_LOGPROB_FLOOR = -9999.0

_encode = msgspec.json.Encoder().encode

TokenText = Callable[[int], str]


class Completed(NamedTuple):
    """A response body as JSON, and its `usage`."""

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
        "usage": usage,
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


def result_line(job_id: str, event_type: str, data: dict[str, Any], payload: bytes) -> bytes:
    """One line of batch output for a terminal event and its payload."""
    status = 200 if event_type == "request.completed" else 500 if data["error"]["code"] in _SERVER_FAULTS else 400
    request_id = f"req_{_ulid(job_id)}_{data['row']}"
    return (
        _line_head(job_id, data["row"], data["attempt"], data["custom_id"])
        + b',"response":{"status_code":%d,"request_id":%s,"body":' % (status, _encode(request_id))
        + payload
        + b'},"error":null}'
    )


def ended_line(job_id: str, row: int, custom_id: str, error: dict[str, Any]) -> bytes:
    """One line for a row that shares the ending of its job."""
    return _line_head(job_id, row, 1, custom_id) + b',"response":null,"error":' + _encode(error) + b"}"


def _line_head(job_id: str, row: int, attempt: int, custom_id: str) -> bytes:
    # The id comes first: the output file finds its rows by it (sinks.jsonl).
    line_id = f"batch_req_{_ulid(job_id)}_{row}_{attempt}"
    return b'{"id":' + _encode(line_id) + b',"custom_id":' + _encode(custom_id)


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
