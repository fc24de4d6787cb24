from __future__ import annotations

from typing import Any

import pytest

from streamrunner.engine.errors import EngineError
from streamrunner.engine.seed import request_seed
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.request import prepare_request, row_params
from streamrunner.runner.rows import Row
from streamrunner.runner.spec import JobSpec

SPEC = JobSpec.model_validate(
    {"name": "t", "model": "m", "input": {"path": "x"}, "sampling": {"temperature": 0.5, "max_tokens": 9, "stop": "\n"}}
)


class Words:
    """A tokenizer of words: enough to see what reaches it."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return ([0] if add_special_tokens else []) + [len(word) for word in text.split()]

    def apply_chat_template(self, messages: Any, tools: Any = None) -> str:
        return " ".join(f"<{message['role']}> {message['content']}" for message in messages) + (
            " tools" if tools else ""
        )


def prepare(row: Row, limit: int = 100) -> Any:
    return prepare_request(row, SPEC, 7, Words(), limit)  # type: ignore[arg-type]


def test_a_chat_is_rendered_and_gets_no_second_begin_of_text() -> None:
    row = Row(0, "c", "chat", messages=({"role": "user", "content": "hello there"},))
    assert prepare(row).prompt_token_ids == [6, 5, 5]
    with_tools = Row(0, "c", "chat", messages=row.messages, tools=({"type": "function"},))
    assert len(prepare(with_tools).prompt_token_ids) == 4


def test_a_completion_gets_what_the_tokenizer_adds() -> None:
    assert prepare(Row(0, "c", "completion", prompt="hello there")).prompt_token_ids == [0, 5, 5]


def test_a_rows_own_settings_go_over_the_jobs() -> None:
    params = row_params(Row(0, "c", "completion", overrides={"temperature": 0, "n": 2}), SPEC, 7)
    assert (params.temperature, params.n, params.max_tokens, params.stop) == (0, 2, 9, ("\n",))


def test_seeds_are_the_rows_own_or_of_the_job_and_the_row() -> None:
    assert row_params(Row(0, "c", "completion", overrides={"seed": 5}), SPEC, 7).seed == 5
    seeds = {row_params(Row(i, "c", "completion"), SPEC, 7).seed for i in range(50)}
    assert len(seeds) == 50
    assert row_params(Row(3, "c", "completion"), SPEC, 7).seed == request_seed(7, 3)
    assert request_seed(8, 3) != request_seed(7, 3)
    assert all(0 <= request_seed(7, i) < 1 << 63 for i in range(50))


def test_seeds_never_change_between_releases() -> None:
    """A resume after an upgrade must sample what the job would have sampled."""
    assert request_seed(7, 0) == 7985665222500292864


def test_a_row_that_is_too_long_names_row_limit_and_remedy() -> None:
    with pytest.raises(
        RunnerError, match=r"row 4 \(long\) has 6 prompt tokens, the limit is 6.*max_model_len"
    ) as caught:
        prepare(Row(4, "long", "completion", prompt="a b c d e"), limit=6)
    assert caught.value.code == "context_length_exceeded"
    assert prepare(Row(4, "fits", "completion", prompt="a b c d"), limit=6)


def test_a_row_whose_prompt_has_no_tokens_is_named() -> None:
    class Silent(Words):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return []

    with pytest.raises(RunnerError, match=r"row 4 \(blank\)") as caught:
        prepare_request(Row(4, "blank", "completion", prompt=" "), SPEC, 7, Silent(), 100)  # type: ignore[arg-type]
    assert caught.value.code == "empty_prompt"


def test_settings_out_of_range_fail_the_row() -> None:
    with pytest.raises(EngineError) as caught:
        prepare(Row(0, "c", "completion", prompt="x", overrides={"temperature": -1}))
    assert (caught.value.code, caught.value.param) == ("invalid_params", "temperature")
