from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.sinks.embedded.quick import QuickClient
from streamrunner.sinks.errors import LogUnreachable

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.embedded.server import EmbeddedServer


def test_answers_are_those_of_redis_py(embedded: EmbeddedServer) -> None:
    full: Any = embedded.client()
    full.hset("h", mapping={"a": "1", "b": "x" * 100_000})
    for n in range(1, 6):
        full.xadd("s", {"n": n, "t": "é"}, id=f"{n}-0")
    quick: Any = embedded.reader()
    assert quick.exists("h", "s", "none") == 2
    assert quick.hgetall("h") == full.hgetall("h")
    assert quick.hgetall("none") == {}
    assert quick.xrange("s") == full.xrange("s")
    assert quick.xrange("s", "2-0", "3-0") == full.xrange("s", "2-0", "3-0")
    assert quick.xrevrange("s", count=2) == full.xrevrange("s", count=2)
    quick.close()
    assert quick.exists("h") == 1


def test_a_broken_connection_is_made_anew_by_the_next_call(embedded: EmbeddedServer) -> None:
    full: Any = embedded.client()
    full.hset("h", "a", "1")
    quick: Any = embedded.reader()
    assert quick.exists("h") == 1
    full.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(LogUnreachable):
        quick.exists("h")
    assert quick.exists("h") == 1


def test_no_server_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(LogUnreachable, match="does not answer"):
        QuickClient(str(tmp_path / "none.sock")).exists("h")


def test_an_error_of_the_server_is_said_in_words(embedded: EmbeddedServer) -> None:
    full: Any = embedded.client()
    full.set("text", "1")
    with pytest.raises(LogUnreachable, match="WRONGTYPE"):
        embedded.reader().hgetall("text")


def test_redis_py_is_not_imported() -> None:
    modules = "streamrunner.sinks.embedded.server, streamrunner.sinks.embedded.quick"
    code = f"import sys, {modules}; print('redis' in sys.modules)"
    shown = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
