from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.library import LIBRARY, ensure_library, library_code

if TYPE_CHECKING:
    from streamrunner.sinks.server import LogServer

FUNCTIONS = ("submit", "join", "beat", "claim", "flush", "control", "end", "leave", "lost")


def test_the_library_is_loaded_once_and_found_again(log_server: LogServer) -> None:
    client = log_server.client()
    ensure_library(client)
    ensure_library(client)
    listed = client.execute_command("FUNCTION LIST", "LIBRARYNAME", LIBRARY)
    assert len(listed) == 1


def test_other_code_under_the_name_is_refused(log_server: LogServer) -> None:
    client = log_server.client()
    client.execute_command("FUNCTION", "LOAD", "REPLACE", library_code() + "\n-- another release")
    with pytest.raises(SinkError, match="other code") as caught:
        ensure_library(client)
    assert caught.value.code == "library_conflict"
    client.execute_command("FUNCTION", "DELETE", LIBRARY)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_of_the_contract_is_registered(name: str) -> None:
    assert f"'{LIBRARY}_{name}'" in library_code()
