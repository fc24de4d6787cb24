"""What servers say about themselves, and which of them will do."""

from __future__ import annotations

import pytest

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.versions import ServerVersion, parse_banner, parse_info, parse_number


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", ServerVersion("redis", (7, 0, 15))),
        ("Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64", ServerVersion("valkey", (9, 1, 2))),
        ("bash: redis-server: not found", None),
    ],
)
def test_the_banner_of_a_program(text: str, version: ServerVersion | None) -> None:
    assert parse_banner(text) == version


def test_valkey_is_not_taken_for_the_redis_it_claims_compatibility_with() -> None:
    info = {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}
    assert parse_info(info) == ServerVersion("valkey", (9, 1, 2))
    assert parse_info({"redis_version": "8.2.3"}) == ServerVersion("redis", (8, 2, 3))
    assert parse_info({}) is None


def test_marks_behind_a_version_do_not_count() -> None:
    assert parse_number("9.1.0-rc2") == (9, 1, 0)
    assert parse_number("255.255.255") > parse_number("9.10.1") > parse_number("9.9")


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        (ServerVersion("redis", (6, 2, 14)), False),
        (ServerVersion("redis", (7, 0, 15)), True),
        (ServerVersion("valkey", (7, 2, 5)), False),
        (ServerVersion("valkey", (8, 0, 0)), True),
    ],
)
def test_functions_need_redis_7_or_valkey_8(version: ServerVersion, supported: bool) -> None:
    assert version.supported is supported


def test_an_old_server_is_refused_by_name() -> None:
    with pytest.raises(SinkError, match=r"Redis 6\.2\.14 at example is too old: Redis 7\.0 or Valkey 8\.0") as caught:
        ServerVersion("redis", (6, 2, 14)).require_supported("at example")
    assert caught.value.code == "server_version"
