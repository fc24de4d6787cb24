"""Which servers may hold a log, and what users are told about the rest."""

from __future__ import annotations

from typing import Any

import pytest

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.policy import UNKNOWN, check_policy, durability_notices

GOOD: dict[str, Any] = {
    "redis_version": "7.0.15",
    "maxmemory_policy": "noeviction",
    "role": "master",
    "aof_enabled": 1,
}


def test_a_durable_server_is_taken_without_a_word() -> None:
    check_policy(GOOD, "here")
    assert durability_notices(GOOD, "always", "here") == ()


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"redis_version": "6.0.16"}, "server_version", "Redis 6.0.16"),
        ({"maxmemory_policy": "allkeys-lru"}, "server_policy", "noeviction"),
        ({"role": "slave"}, "server_policy", "primary"),
    ],
)
def test_a_server_that_cannot_keep_a_log_is_refused_with_the_remedy(
    change: dict[str, str], code: str, words: str
) -> None:
    with pytest.raises(SinkError, match=words) as caught:
        check_policy(GOOD | change, "redis://***@db.example")
    assert caught.value.code == code
    assert "redis://***@db.example" in caught.value.message


@pytest.mark.parametrize(
    ("info", "appendfsync", "words"),
    [
        (GOOD, "everysec", "2 seconds"),
        (GOOD, "no", "30 seconds"),
        (GOOD, UNKNOWN, "does not tell its appendfsync"),
        (GOOD | {"aof_enabled": 0}, "always", "last snapshot"),
        ({}, UNKNOWN, "does not tell how it persists"),
    ],
)
def test_weaker_durability_is_told_with_what_can_be_lost(info: dict[str, Any], appendfsync: str, words: str) -> None:
    [notice] = durability_notices(info, appendfsync, "here")
    assert words in notice


def test_a_server_that_may_not_be_asked_is_not_refused() -> None:
    check_policy({}, "here")
