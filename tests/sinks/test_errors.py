"""Errors carry a stable code and survive the way between processes."""

from __future__ import annotations

import pickle

import pytest

from streamrunner.sinks.errors import LogUnreachable, SinkError


@pytest.mark.parametrize("error", [SinkError("aof_damaged", "it broke"), LogUnreachable("nobody there")])
def test_an_error_arrives_whole_in_another_process(error: SinkError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, again.message, str(again)) == (
        type(error),
        error.code,
        error.message,
        error.message,
    )


def test_an_unreachable_log_is_a_sink_error_with_its_code() -> None:
    assert isinstance(LogUnreachable("x"), SinkError)
    assert LogUnreachable("x").code == "log_unreachable"
