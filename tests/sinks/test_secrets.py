from __future__ import annotations

import pytest

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.secrets import is_reference, resolve_secrets
from streamrunner.sinks.server import ExternalServer

ENVIRONMENT = {"PASSWORD": "p@ss/w:rd", "EMPTY": "", "HOST": "h"}


def test_a_reference_is_the_value_of_its_variable_encoded_where_a_url_needs_it() -> None:
    url = "redis://runner:${PASSWORD}@${HOST}:1/0"
    assert (
        resolve_secrets(url, "the URL", in_url=True, environment=ENVIRONMENT) == "redis://runner:p%40ss%2Fw%3Ard@h:1/0"
    )
    assert resolve_secrets("${PASSWORD}", "the token", environment=ENVIRONMENT) == "p@ss/w:rd"
    assert resolve_secrets("nothing $HOME {here}", "it", environment=ENVIRONMENT) == "nothing $HOME {here}"


@pytest.mark.parametrize("name", ["UNKNOWN", "EMPTY"])
def test_an_unknown_variable_is_named_with_the_remedy(name: str) -> None:
    with pytest.raises(SinkError, match=f"the URL refers to .*{name}.*export {name}=") as caught:
        resolve_secrets(f"redis://:${{{name}}}@h", "the URL", environment=ENVIRONMENT)
    assert caught.value.code == "secret_missing"


@pytest.mark.parametrize("text", ["${}", "${a b}", "${1X}", "${A:-default}"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(SinkError, match="the name of an environment variable"):
        resolve_secrets(text, "the URL", environment=ENVIRONMENT)


def test_a_value_is_not_looked_at_again() -> None:
    assert resolve_secrets("${A}", "it", environment={"A": "${B}"}) == "${B}"


def test_a_field_for_secrets_takes_nothing_but_one_reference() -> None:
    assert is_reference("${HF_TOKEN}")
    assert not any(map(is_reference, ["hf_abc", "x${HF_TOKEN}", "${HF_TOKEN}${B}", "${}", "${a b}", ""]))


def test_the_servers_password_comes_from_the_environment(debian_redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExternalServer(debian_redis) as server, server.client() as client:
        client.acl_setuser("u", enabled=True, passwords=["+p@ss/w:rd"], keys=["*"], categories=["+@all"])
    monkeypatch.setenv("TEST_PASSWORD", "p@ss/w:rd")
    with ExternalServer(f"{debian_redis}?username=u&password=${{TEST_PASSWORD}}") as server, server.client() as client:
        assert client.ping()
        assert "p@ss" not in server.address
        assert "TEST_PASSWORD" not in server.address
