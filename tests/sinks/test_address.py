"""URLs of servers: what they may say, and that their credentials never show."""

from __future__ import annotations

import pytest

from streamrunner.sinks.address import connection_options, mask_url, scrub, secrets_of
from streamrunner.sinks.errors import SinkError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/2", "redis://localhost:6379/2"),
        ("redis://:s3cret@db.example:6380/0", "redis://***@db.example:6380/0"),
        ("rediss://ann:s3cret@db.example?ssl_ca_certs=/s3cret", "rediss://***@db.example"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("unix:///run/redis.sock?db=1&password=s3cret", "unix://***@/run/redis.sock"),
        ("redis://:s3cret/with/slash@host:1", "redis://***"),
        ("postgres://ann:s3cret@host", "***"),
        ("s3cret", "***"),
    ],
)
def test_an_address_is_shown_without_credentials(url: str, shown: str) -> None:
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://:s3cret@host",
        "redis://:s3cret/slash@host:1",
        "redis://:s3cret@host:99999",
        "redis://:s3cret@[host",
        "unix://?password=s3cret",
        "redis://:s3cret@host?db=one",
    ],
)
def test_a_bad_url_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(SinkError) as caught:
        connection_options(url)
    assert caught.value.code == "log_url"
    assert "s3cret" not in caught.value.message
    assert "redis://[user:password@]host" in caught.value.message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("option", ["retry_on_timeout=yes", "socket_timeout=1", "protocol=3", "decode_responses=1"])
def test_a_url_cannot_change_what_the_guarantees_rest_on(option: str) -> None:
    with pytest.raises(SinkError, match=option.partition("=")[0]):
        connection_options(f"redis://host?{option}")


def test_address_database_credentials_and_tls_come_from_the_url() -> None:
    options = connection_options("rediss://ann:p%40ss@db.example:6380/3?ssl_ca_certs=/etc/ca.pem")
    expected = {"username": "ann", "password": "p@ss", "host": "db.example", "port": 6380, "db": 3}
    assert options.items() >= {**expected, "ssl_ca_certs": "/etc/ca.pem"}.items()
    assert options["connection_class"].__name__ == "SSLConnection"


def test_credentials_in_foreign_messages_are_scrubbed_in_every_spelling() -> None:
    secrets = secrets_of("redis://ann:p%40ss%2Fw@host")
    assert scrub("user ann, password p@ss/w or p%40ss%2Fw", secrets) == "user ann, password *** or ***"
    assert secrets_of("redis://host") == ()
