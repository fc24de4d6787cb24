"""Request lines that a job accepts are ones that the `openai` package's own types describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as CompletionParams
from pydantic import TypeAdapter, ValidationError

from streamrunner.runner.rows import CHAT_URL, COMPLETION_URL, Row, parse_row
from streamrunner.runner.spec import JobSpec

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SPEC = JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "x.jsonl"}})
TYPES = {CHAT_URL: TypeAdapter(ChatParams), COMPLETION_URL: TypeAdapter(CompletionParams)}
USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}

CHATS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Ho"}, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]}]},
    {"messages": [USER], "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 1, "n": 2},
    {"messages": [USER], "logprobs": True, "top_logprobs": 3, "logit_bias": {"7": -1}, "stop": ["a", "b"]},
    {"messages": [USER], "presence_penalty": 1.0, "frequency_penalty": -1.0, "user": "u", "metadata": {"a": "b"}},
    {"messages": [USER], "response_format": SCHEMA, "stream": False, "store": False},
    {"messages": [USER], "response_format": {"type": "json_object"}, "tool_choice": "auto"},
    {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
]
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "Once"},
    {"prompt": "Once", "max_tokens": 5, "logprobs": 3, "echo": False, "best_of": 1, "stop": "."},
    {"prompt": "Once", "temperature": 0, "n": 2, "seed": 3, "logit_bias": {"7": 1}},
]


def line(url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": "c", "method": "POST", "url": url, "body": {"model": "m", **body}}


BODIES = [line(CHAT_URL, body) for body in CHATS] + [line(COMPLETION_URL, body) for body in COMPLETIONS]
SHIPPED = [
    json.loads(one)
    for path in sorted(EXAMPLES.rglob("requests.jsonl"))
    for one in path.read_text("utf-8").splitlines()
    if '"url"' in one
]


@pytest.mark.parametrize("request_line", BODIES + SHIPPED[:5])
def test_an_accepted_line_is_one_of_openais(request_line: dict[str, Any]) -> None:
    found = parse_row(json.dumps(request_line).encode(), 0, 1, SPEC)
    assert isinstance(found, Row), found
    TYPES[request_line["url"]].validate_python({"model": "m", **request_line["body"]})


@pytest.mark.parametrize(
    "body",
    [{"messages": [USER], "top_p": []}, {"messages": [USER], "temperature": "hot"}, {"messages": [USER], "n": "two"}],
)
def test_what_openais_types_refuse_is_refused_here_too(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TYPES[CHAT_URL].validate_python({"model": "m", **body}, strict=True)
    assert not isinstance(parse_row(json.dumps(line(CHAT_URL, body)).encode(), 0, 1, SPEC), Row)
