"""The published form of the log contract: JSON Schema of its events and an AsyncAPI 3 document of its streams.

Both are generated from the models in `events` and committed under docs/schema; a test fails when they drift apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamrunner.sinks.events import EVENT_MODELS, event_schema

EVENTS_FILE = "events.schema.json"
ASYNCAPI_FILE = "asyncapi.json"


def render() -> dict[str, str]:
    """File name to text, as committed."""
    return {EVENTS_FILE: _text(event_schema()), ASYNCAPI_FILE: _text(asyncapi())}


def asyncapi() -> dict[str, Any]:
    """The streams of one job. The Redis binding is empty by its spec, so ids and fields are `x-` extensions."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "streamrunner job log",
            "version": "1",
            "description": "Read with XRANGE and XREAD; written by the function library sr_v1 alone.",
        },
        "channels": {name: _channel(name, *channel) for name, channel in _CHANNELS.items()},
        "operations": {
            f"follow_{name}": {"action": "receive", "channel": {"$ref": f"#/channels/{name}"}} for name in _CHANNELS
        },
        "components": {"schemas": _SCHEMAS},
    }


_JOB = {"jobId": {"description": "`job_` and a ULID; the braces of the key are literal"}}
_WORKER = {"worker": {"description": "worker id, from a `worker.joined` event"}}
# name → (address, id rule, schema of the payload field, that field, title)
_CHANNELS: dict[str, tuple[str, str, dict[str, Any], str, str]] = {
    "log": (
        "sr:{{jobId}}:log",
        "<seq>-<gen>; seq is contiguous from 1",
        {"$ref": f"{EVENTS_FILE}#"},
        "data",
        "History of the job",
    ),
    "results": (
        "sr:{{jobId}}:res",
        "the id of the terminal event it belongs to",
        {"$ref": "#/components/schemas/Payload"},
        "p",
        "Result payloads",
    ),
    "steps": (
        "sr:{{jobId}}:steps:{worker}",
        "<epoch>-<n>; n counts the worker's flushes of this epoch",
        {"$ref": "#/components/schemas/StepDeltas"},
        "d",
        "Token deltas of one worker",
    ),
}
_SCHEMAS: dict[str, Any] = {
    "Payload": {
        "type": "object",
        "description": 'completed: an OpenAI response body; failed: {"error": {code, message, param}}',
    },
    "StepDeltas": {
        "type": "array",
        "description": "per row and choice the highest claim wins; deltas lie over each other by `at`",
        "items": {
            "type": "array",
            "description": "[row, claim, choice, at, token_ids, text, logprobs?]",
            "minItems": 6,
            "maxItems": 7,
            "prefixItems": [
                {"title": "row", "type": "integer", "minimum": 0},
                {"title": "claim", "type": "integer", "minimum": 1},
                {"title": "choice", "type": "integer", "minimum": 0},
                {"title": "at", "type": "integer", "minimum": 0},
                {"title": "token_ids", "type": "array", "items": {"type": "integer", "minimum": 0}},
                {"title": "text", "type": "string"},
                {"title": "logprobs", "type": "array", "description": "per token [[id, logprob, rank], …]"},
            ],
        },
    },
}


def _channel(name: str, address: str, id_rule: str, payload: dict[str, Any], field: str, title: str) -> dict[str, Any]:
    parameters = {**_JOB, **(_WORKER if "{worker}" in address else {})}
    message: dict[str, Any] = {"title": title, "contentType": "application/json", "payload": payload, "x-field": field}
    if name == "log":
        message["x-types"] = sorted(EVENT_MODELS)
    return {
        "address": address,
        "title": title,
        "parameters": parameters,
        "messages": {name: message},
        "x-redis-type": "stream",
        "x-id": id_rule,
    }


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the documents into docs/schema of the current checkout (`make schema`)."""
    for name, text in render().items():
        (Path("docs") / "schema" / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
