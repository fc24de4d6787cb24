"""Request bodies that are accepted are bodies of OpenAI's own types, whatever their settings hold."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as Chat
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as Completion

from streamrunner.runner.rows import Row, parse_row
from streamrunner.runner.spec import JobSpec

SPEC = JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "rows.jsonl"}})
TYPES = {"/v1/chat/completions": pydantic.TypeAdapter(Chat), "/v1/completions": pydantic.TypeAdapter(Completion)}

VALUES = st.sampled_from(
    [None, True, False, 0, 1, 2, -1, 0.5, "x", "", [], ["x"], [1], {}, {"7": 1}, {"x": "y"}, {"type": "text"}]
)
NAMES = st.sampled_from(
    ["temperature", "top_p", "n", "max_tokens", "max_completion_tokens", "stop", "seed", "presence_penalty", "tools",
     "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format", "stream", "parallel_tool_calls"]
)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"])},
        optional={
            "content": st.one_of(
                VALUES,
                st.just([{"type": "text", "text": "x"}]),
                st.just([{"type": "image_url", "image_url": {"url": "u"}}]),
            )
        },
    ),
    max_size=2,
)


def accepts(url: str, body: dict[str, Any]) -> bool:
    line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    return isinstance(parse_row(json.dumps(line).encode(), 0, 1, SPEC), Row)


@given(MESSAGES, st.dictionaries(NAMES, VALUES, max_size=3))
def test_an_accepted_chat_is_a_chat_of_openais_types(messages: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    body = {"model": "m", "messages": messages, **settings}
    if accepts("/v1/chat/completions", body):
        TYPES["/v1/chat/completions"].validate_python(body)


@given(VALUES, st.dictionaries(NAMES, VALUES, max_size=3))
def test_an_accepted_completion_is_one_of_openais_types(prompt: Any, settings: dict[str, Any]) -> None:
    body = {"model": "m", "prompt": prompt, **settings}
    if accepts("/v1/completions", body):
        TYPES["/v1/completions"].validate_python(body)


@pytest.mark.parametrize("url", TYPES)
def test_a_body_with_every_common_setting_is_accepted(url: str) -> None:
    body = {
        "model": "m", "temperature": 0.2, "top_p": 0.9, "n": 2, "max_tokens": 5, "stop": ["a"], "seed": 1, "user": "me",
        "presence_penalty": 0.1, "frequency_penalty": -0.1, "logit_bias": {"5": -100}, "stream": False,
    }  # fmt: skip
    is_chat = "chat" in url
    body |= (
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
        if is_chat
        else {"prompt": "x", "logprobs": 1}
    )
    assert accepts(url, body)
    TYPES[url].validate_python(body)
