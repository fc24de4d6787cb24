from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.shared import ErrorObject

from streamrunner.engine.params import SamplingParams
from streamrunner.engine.step import TokenLogprob
from streamrunner.runner.flight import ChoiceRun, RowRun
from streamrunner.runner.job import JobContext
from streamrunner.runner.response import completed_payload, decode_ending, ending_record, failed_payload, result_record
from streamrunner.runner.rows import Row
from streamrunner.runner.spec import JobSpec
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.outputs.formats import jsonl_line

JOB = JobContext(
    "job_01abc",
    JobKeys("job_01abc"),
    JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "x"}}),
    7,
    Path(),
    1700,
)
DATA = {"row": 3, "custom_id": 'häns "x"', "attempt": 1}


def result_line(kind: str, data: dict[str, Any], payload: bytes) -> bytes:
    record = result_record(kind.encode(), decode_ending(json.dumps(data).encode()), payload)
    return jsonl_line(b"01abc", record)


def run(kind: Any, *, logprobs: bool = False) -> RowRun:
    choices = []
    for index in range(2):
        choice = ChoiceRun(
            f"3.{index}.1", [11, 12], "Hi\u2028 <b>", finish_reason="stop", stop_reason="\n" if index else None
        )
        if logprobs:
            choice.logprobs = [
                (TokenLogprob(11, -0.5, 1), TokenLogprob(11, -0.5, 1), TokenLogprob(9, float("-inf"), 2)),
                (TokenLogprob(12, float("-inf"), 7), TokenLogprob(9, -0.1, 1)),
            ]
        choices.append(choice)
    return RowRun(Row(3, "c", kind), "1-0", 1, 1, [1, 2, 3], SamplingParams(n=2), choices, num_cached_tokens=2)


def text_of(token: int) -> str:
    return f"<{token}>"


def body(kind: str, **options: Any) -> dict[str, Any]:
    payload, usage = completed_payload(JOB, run(kind, **options), text_of)
    parsed: dict[str, Any] = json.loads(payload)
    assert usage == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert parsed["usage"] == {**usage, "prompt_tokens_details": {"cached_tokens": 2}}
    return parsed


@pytest.mark.parametrize("logprobs", [False, True])
def test_openai_parses_a_chat_result(logprobs: bool) -> None:
    parsed = ChatCompletion.model_validate(body("chat", logprobs=logprobs), strict=True)
    assert [choice.message.content for choice in parsed.choices] == ["Hi\u2028 <b>"] * 2
    assert [choice.finish_reason for choice in parsed.choices] == ["stop", "stop"]
    assert parsed.created == 1700
    if logprobs:
        content = parsed.choices[0].logprobs
        assert content is not None
        assert content.content is not None
        first = content.content[0]
        assert (first.token, first.logprob, first.bytes) == ("<11>", -0.5, list(b"<11>"))
        assert [one.token for one in first.top_logprobs] == ["<11>", "<9>"]


@pytest.mark.parametrize("logprobs", [False, True])
def test_openai_parses_a_completion_result(logprobs: bool) -> None:
    parsed = Completion.model_validate(body("completion", logprobs=logprobs), strict=True)
    assert parsed.choices[0].text == "Hi\u2028 <b>"
    if logprobs:
        found = parsed.choices[0].logprobs
        assert found is not None
        assert found.tokens == ["<11>", "<12>"]
        assert found.text_offset == [0, 4]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_prompt_log_probabilities_stand_where_vllms_server_puts_them(kind: str) -> None:
    scored = run(kind)
    scored.prompt_logprobs = ((TokenLogprob(2, -1.5, 3), TokenLogprob(9, -0.1, 1)), (TokenLogprob(3, -0.5, 1),))
    parsed = json.loads(completed_payload(JOB, scored, text_of).payload)
    places = [parsed] if kind == "chat" else parsed["choices"]
    for place in places:
        first, second, third = place["prompt_logprobs"]
        assert first is None
        assert second["2"] == {"logprob": -1.5, "rank": 3, "decoded_token": "<2>"}
        assert list(second) == ["2", "9"]
        assert third == {"3": {"logprob": -0.5, "rank": 1, "decoded_token": "<3>"}}
    (ChatCompletion if kind == "chat" else Completion).model_validate(parsed)


_LOGPROBS = st.floats(max_value=0.0, allow_nan=False) | st.just(float("nan"))
_TOKENS = st.lists(st.builds(TokenLogprob, st.integers(0, 10**6), _LOGPROBS, st.integers(1, 10**6)), min_size=1)
_CHOICES = st.builds(
    ChoiceRun, st.just("3.0.1"), token_ids=st.lists(st.integers(0, 10**6), max_size=4), text=st.text(max_size=20),
    logprobs=st.lists(_TOKENS.map(tuple), max_size=4), finish_reason=st.sampled_from(["stop", "length"]),
    stop_reason=st.none() | st.integers(0, 10**6) | st.text(max_size=4),
)  # fmt: skip


@given(st.lists(_CHOICES, min_size=1, max_size=3), st.sampled_from(["chat", "completion"]), st.text(max_size=6))
def test_openai_parses_whatever_a_model_says(choices: list[ChoiceRun], kind: Any, token: str) -> None:
    run = RowRun(Row(3, "c", kind), "1-0", 1, 1, [1, 2, 3], SamplingParams(), choices)
    payload = completed_payload(JOB, run, lambda _: token).payload
    parsed = json.loads(payload, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    found: Any = (ChatCompletion if kind == "chat" else Completion).model_validate(parsed, strict=True)
    texts = [choice.message.content if kind == "chat" else choice.text for choice in found.choices]
    assert texts == [choice.text for choice in choices]
    assert json.loads(result_line("request.completed", DATA, payload))["response"]["body"] == parsed


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_error_is_one_line_of_json_that_openai_reads(custom_id: str, message: str) -> None:
    error = {"code": "invalid_json_line", "message": message, "param": None}
    line = result_line("request.failed", {**DATA, "custom_id": custom_id, "error": error}, failed_payload(error))
    assert line.count(b"\n") == 0
    parsed = json.loads(line)
    assert parsed["custom_id"] == custom_id
    assert ErrorObject.model_validate(parsed["response"]["body"]["error"], strict=True).message == message


def test_an_impossible_token_is_a_number_and_never_infinity() -> None:
    token = body("chat", logprobs=True)["choices"][0]["logprobs"]["content"][1]
    assert token["logprob"] == -9999.0


def test_the_matched_stop_string_is_told_as_vllm_does() -> None:
    assert [choice["stop_reason"] for choice in body("chat")["choices"]] == [None, "\n"]


def test_a_completed_line_is_openais_batch_output() -> None:
    payload = completed_payload(JOB, run("chat"), text_of).payload
    line = result_line("request.completed", DATA, payload)
    assert line.startswith(b'{"id":"batch_req_01abc_3_1","custom_id":')
    assert b"\n" not in line
    parsed = json.loads(line)
    assert list(parsed) == ["id", "custom_id", "response", "error"]
    assert parsed["custom_id"] == DATA["custom_id"]
    assert (parsed["response"]["status_code"], parsed["error"]) == (200, None)
    ChatCompletion.model_validate(parsed["response"]["body"])


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("context_length_exceeded", 400, "invalid_request_error"), ("nan_logits", 500, "server_error")],
)
def test_a_failed_line_has_the_error_in_its_body(code: str, status: int, kind: str) -> None:
    error = {"code": code, "message": "too long", "param": None}
    parsed = json.loads(result_line("request.failed", {**DATA, "error": error}, failed_payload(error)))
    assert parsed["response"]["status_code"] == status
    assert parsed["response"]["body"]["error"] == {"message": "too long", "type": kind, "param": None, "code": code}


def test_a_row_that_shared_its_jobs_ending_has_no_response() -> None:
    record = ending_record(9, 1, "c", "cancelled", {"code": "batch_cancelled", "message": "by request"})
    assert json.loads(jsonl_line(b"01abc", record)) == {
        "id": "batch_req_01abc_9_1", "custom_id": "c", "response": None,
        "error": {"code": "batch_cancelled", "message": "by request"},
    }  # fmt: skip
