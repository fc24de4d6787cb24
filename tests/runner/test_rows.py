from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams
from streamrunner.runner.request import row_params
from streamrunner.runner.rows import MAX_CUSTOM_ID, MAX_LINE_BYTES, Row, RowError, parse_row
from streamrunner.runner.spec import JobSpec

HELLO = [{"role": "user", "content": "hello"}]
SPEC = JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "x"}})


def spec(**sections: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "t", "model": "m", "input": {"path": "x", **sections.pop("input", {})}, **sections}
    )


def batch(body: Any, **fields: Any) -> bytes:
    line = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": body, **fields}
    return json.dumps({name: value for name, value in line.items() if value is not ...}).encode()


def parse(raw: bytes | dict[str, Any], of: JobSpec = SPEC) -> Row | RowError:
    return parse_row(raw if isinstance(raw, bytes) else json.dumps(raw).encode(), 3, 7, of)


def error(raw: bytes | dict[str, Any], of: JobSpec = SPEC) -> RowError:
    found = parse(raw, of)
    assert isinstance(found, RowError), found
    assert (found.index, found.line) == (3, 7)
    return found


def row(raw: bytes | dict[str, Any], of: JobSpec = SPEC) -> Row:
    found = parse(raw, of)
    assert isinstance(found, Row), found
    return found


def test_an_openai_batch_line_with_settings_of_its_own() -> None:
    found = row(
        batch({"model": "x", "messages": HELLO, "temperature": 0, "max_completion_tokens": 9, "stop": "\n", "seed": 5})
    )
    assert (found.custom_id, found.kind, found.messages) == ("c", "chat", tuple(HELLO))
    assert found.overrides == {"temperature": 0, "max_tokens": 9, "stop": ("\n",), "seed": 5}


def test_completions_lines_and_plain_rows() -> None:
    line = batch({"prompt": "Once", "logprobs": 3}, url="/v1/completions")
    assert (row(line).kind, row(line).prompt, row(line).overrides) == ("completion", "Once", {"logprobs": 3})
    assert row({"prompt": "Once", "n": 2}).custom_id == "row-3"
    assert row({"messages": HELLO, "custom_id": "mine"}).custom_id == "mine"


def test_a_template_makes_the_prompt_of_a_row() -> None:
    of = spec(input={"prompt": "Translate: {{ text }}"})
    assert row({"text": "Haus"}, of).prompt == "Translate: Haus"
    assert row({"text": "Haus"}, spec(task="chat", input={"prompt": "{{ text }}"})).messages[0]["content"] == "Haus"
    missing = error({"word": "Haus"}, of)
    assert (missing.code, missing.custom_id) == ("template_error", "row-3")
    assert "word" in missing.message


def test_the_format_decides_what_a_line_is() -> None:
    assert error({"prompt": "Once"}, spec(input={"format": "openai"})).code == "missing_custom_id"
    template = spec(input={"format": "jsonl", "prompt": "{{ body }}"})
    assert row({"body": "a column of that name"}, template).prompt == "a column of that name"


@pytest.mark.parametrize(
    ("raw", "code", "says"),
    [
        (b"{not json", "invalid_json_line", ""),
        (b"[1]", "invalid_json_line", "list"),
        (b'{"prompt": NaN}', "invalid_json_line", "NaN"),
        (b'{"prompt": "a", "prompt": "b"}', "invalid_json_line", "twice"),
        (b'{"prompt": "\\ud800"}', "invalid_json_line", "surrogate"),
        (b'{"prompt": "caf\xe9"}', "not_utf8", "UTF-8"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json_line", "deep"),
        (b'{"prompt": "x", "temperature": 1e999}', "invalid_json_line", "large"),
        (batch({"messages": HELLO}, custom_id=...), "missing_custom_id", ""),
        (batch({"messages": HELLO}, custom_id=7), "missing_custom_id", "string"),
        (batch({"messages": HELLO}, custom_id="x" * (MAX_CUSTOM_ID + 1)), "missing_custom_id", str(MAX_CUSTOM_ID)),
        (batch({"messages": HELLO}, method="GET"), "invalid_method", "POST"),
        (batch({"messages": HELLO}, url="/v1/images"), "invalid_url", "/v1/chat/completions"),
        (batch("x"), "missing_body", ""),
        (batch({}), "invalid_messages", "messages"),
        (batch({"messages": []}), "invalid_messages", ""),
        (batch({"messages": [{"role": "user"}]}), "invalid_messages", "messages[0].content"),
        (batch({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "invalid_messages", "text"),
        (
            batch({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "invalid_messages",
            "of image_url",
        ),
        (batch({"messages": HELLO, "chat_template_kwargs": 1}), "invalid_parameter", "chat_template_kwargs"),
        (batch({"messages": HELLO, "chat_template_kwargs": {"tools": []}}), "invalid_parameter", "no variable"),
        (batch({"messages": HELLO, "add_generation_prompt": "no"}), "invalid_parameter", "true or false"),
        (batch({"messages": HELLO, "temperature": "hot"}), "invalid_parameter", "temperature"),
        (batch({"messages": HELLO, "max_tokens": True}), "invalid_parameter", "max_tokens"),
        (batch({"messages": HELLO, "stop": [1]}), "invalid_parameter", "stop"),
        (batch({"messages": HELLO, "logprobs": 5}), "invalid_parameter", "logprobs"),
        (batch({"messages": HELLO, "logprobs": 1}), "invalid_parameter", "true or false"),
        (batch({"messages": [{"role": "assistant", "content": 5, "tool_calls": [{}]}]}), "invalid_messages", "content"),
        (batch({"messages": HELLO, "top_logprobs": 5}), "invalid_parameter", "logprobs: true"),
        (batch({"messages": HELLO, "frequency_penalty": "high"}), "invalid_parameter", "must be a number"),
        (batch({"messages": HELLO, "logit_bias": {"a": 1}}), "invalid_parameter", "token ids and numbers"),
        (batch({"messages": HELLO, "bad_words": [1]}), "invalid_parameter", "bad_words"),
        (batch({"messages": HELLO, "stream": True}), "unsupported_parameter", "stream"),
        (batch({"messages": HELLO, "response_format": {"type": "xml"}}), "invalid_parameter", "json_schema.schema"),
        (
            batch({"messages": HELLO, "response_format": {"type": "json_schema"}}),
            "invalid_parameter",
            "response_format",
        ),
        (batch({"messages": HELLO, "response_format": []}), "invalid_parameter", "response_format"),
        (batch({"messages": HELLO, "structured_outputs": {"regx": "a"}}), "invalid_parameter", "regx"),
        (batch({"messages": HELLO, "structured_outputs": []}), "invalid_parameter", "`structured_outputs` is list"),
        (
            batch(
                {"messages": HELLO, "structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}
            ),
            "invalid_parameter",
            "not both",
        ),
        (batch({"messages": HELLO, "temprature": 1}), "unsupported_parameter", "temprature"),
        (b'{"prompt": ""}', "empty_prompt", ""),
        (b'{"prompt": 5}', "invalid_request", "number"),
        (b'{"question": "x"}', "invalid_request", "messages"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_row_says_what_is_wrong_with_it(raw: bytes, code: str, says: str) -> None:
    found = error(raw)
    assert found.code == code
    assert says in found.message


def test_a_row_may_be_plain_text_in_a_job_whose_texts_have_a_form() -> None:
    spec = SPEC.model_copy(update={"sampling": SPEC.sampling.model_copy(update={"structured_outputs": {"regex": "a"}})})
    plain = {"messages": HELLO, "response_format": {"type": "text"}}
    assert row_params(row(batch(plain)), spec, 7).structured_outputs is None
    assert row_params(row(batch({"messages": HELLO})), spec, 7).structured_outputs is not None


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}, "json", "{}"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ("a", "b")),
        ({"structured_outputs": {"regex": "a+"}, "response_format": {"type": "text"}}, "regex", "a+"),
    ],
)
def test_the_form_of_a_text_reaches_the_engine(body: dict[str, Any], name: str, value: Any) -> None:
    form = row_params(row(batch({"messages": HELLO, **body})), SPEC, 7).structured_outputs
    assert getattr(form, name) == value


def test_defaults_and_harmless_parameters_pass() -> None:
    body = {
        "messages": HELLO,
        "stream": False,
        "user": "u",
        "frequency_penalty": None,
        "response_format": {"type": "text"},
    }
    assert row(batch(body)).overrides == {"structured_outputs": None}


def test_sampling_of_openai_and_vllm_reaches_the_engine() -> None:
    body = {
        "messages": HELLO, "max_completion_tokens": 9, "presence_penalty": 1, "frequency_penalty": 0.5,
        "repetition_penalty": 1.2, "logit_bias": {"5": -100}, "bad_words": "x", "allowed_token_ids": [1, 5],
        "min_tokens": 2, "logprobs": True, "top_logprobs": 3, "prompt_logprobs": 1, "stop": "\n", "seed": 3, "n": 2,
    }  # fmt: skip
    params = SamplingParams(**row(batch(body)).overrides)
    assert params == SamplingParams(
        max_tokens=9, presence_penalty=1, frequency_penalty=0.5, repetition_penalty=1.2, logit_bias={5: -100.0},
        bad_words=("x",), allowed_token_ids=(1, 5), min_tokens=2, logprobs=3, prompt_logprobs=1, stop=("\n",), seed=3,
        n=2,
    )  # fmt: skip


def test_content_parts_and_tools_reach_the_template() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = row(batch({"messages": parts, "tools": tools}))
    assert found.messages == tuple(parts)
    assert found.tools == tuple(tools)


def test_options_of_the_template_reach_it_under_their_own_names() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True, "documents": [{"text": "x"}]}
    found = row(batch({"messages": HELLO, **options, "chat_template_kwargs": {"enable_thinking": False}}))
    assert found.chat_options == {**options, "enable_thinking": False}
    assert row(batch({"messages": HELLO})).chat_options == {}


def test_a_message_may_be_nothing_but_tool_calls() -> None:
    calls = [{"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}]
    assert row(batch({"messages": calls})).messages == tuple(calls)


@pytest.mark.parametrize(
    "raw",
    [
        batch({"messages": HELLO}, url="x" * 100_000),
        batch({"messages": HELLO}, method=["x"] * 100_000),
        batch({"messages": HELLO, "x" * 100_000: 1}),
        b'{"' + b"x" * 100_000 + b'": 1, "' + b"x" * 100_000 + b'": 2}',
    ],
    ids=["url", "method", "parameter", "twice"],
)
def test_a_message_never_grows_with_the_row(raw: bytes) -> None:
    found = error(raw)
    assert len(found.message) + len(found.param or "") <= 1000


def test_a_line_beyond_the_limit_is_not_even_read() -> None:
    found = error(b'{"prompt": "' + b"x" * MAX_LINE_BYTES + b'"}')
    assert (found.code, str(MAX_LINE_BYTES) in found.message) == ("line_too_long", True)


def test_a_row_of_the_other_kind_is_refused() -> None:
    assert error({"prompt": "x"}, spec(task="chat")).code == "url_mismatch"


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(raw: bytes) -> None:
    assert isinstance(parse(raw), Row | RowError)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from(
    [
        "custom_id",
        "method",
        "url",
        "body",
        "prompt",
        "messages",
        "temperature",
        "stop",
        "n",
        "logprobs",
        "tools",
        "seed",
        "x",
    ]
)


# A busy machine makes the first examples slow, which is no fault of theirs.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(_NAMES, _JSON, max_size=6), st.dictionaries(_NAMES, _JSON, max_size=6))
def test_no_request_makes_it_raise(fields: dict[str, Any], body: dict[str, Any]) -> None:
    for value in (fields, {**fields, "body": body, "url": "/v1/chat/completions", "method": "POST", "custom_id": "c"}):
        found = parse(json.dumps(value).encode())
        assert isinstance(found, Row | RowError)
        if isinstance(found, RowError):
            assert found.code
            assert found.message


_PARAMETERS = st.sampled_from(
    ["temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "stop", "stop_token_ids", "seed", "n",
     "logprobs", "top_logprobs", "ignore_eos", "max_completion_tokens"]
)  # fmt: skip
_SETTINGS = st.dictionaries(_PARAMETERS, _JSON | st.integers(10**300, 10**310) | st.integers(-2, 5), max_size=4)


@given(_SETTINGS, st.sampled_from(["prompt", "messages"]))
def test_settings_that_pass_are_the_engines_or_are_refused_by_it(values: dict[str, Any], kind: str) -> None:
    found = parse(json.dumps({kind: "x" if kind == "prompt" else HELLO, **values}).encode())
    if isinstance(found, Row):
        try:
            row_params(found, SPEC, 7)
        except EngineError as refusal:
            found = RowError(3, 7, found.custom_id, refusal.code, refusal.message, refusal.param)
    assert isinstance(found, Row) or (found.code and found.message)
