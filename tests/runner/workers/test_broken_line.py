"""A worker whose connection breaks every few commands, or whose server is killed under it: every row ends once, with
the text of an undisturbed run.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.worker import Outcome
from streamrunner.sinks.server import ExternalServer

sys.path.insert(0, str(Path(__file__).parents[2] / "sinks"))
from proxy import Command, Fault, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.sinks.embedded.server import EmbeddedServer

Rig = Any


def leave_half_finished_rows(rig: Rig, eventually: Callable[..., None]) -> None:
    """A first worker dies with tokens in the log, so that the next one has to read them."""
    stop = threading.Event()
    worker, joined, loop = rig.worker("first", stop.is_set)
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: rig.has_tokens("first"))
    stop.set()
    thread.join(10)
    assert outcome == [Outcome.STOPPED]
    loop.close()
    worker.stop("SIGTERM")


@pytest.mark.parametrize("every", [5, 11])
def test_on_a_line_that_breaks_every_few_commands(
    rig: Rig, expected: dict[int, list[str]], eventually: Callable[..., None], every: int
) -> None:
    leave_half_finished_rows(rig, eventually)
    faults = itertools.cycle(Fault)

    def judge(command: Command) -> Fault | None:
        return next(faults) if command.number % every == every - 1 else None

    with Proxy(rig.server.address, judge) as proxy:
        rig.server = PatientServer(proxy.url)
        worker, joined, loop = rig.worker("heir")
        thread, outcome = rig.start(worker, joined)
        thread.join(60)
        loop.close()
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected


class PatientServer(ExternalServer):
    """The checks at the start go over the same broken line; they are not what is tried here."""

    def __init__(self, url: str) -> None:
        self.address = url
        self._options = {"host": "127.0.0.1", "port": int(url.rpartition(":")[2])}
        self.may_lose_tail = False

    def revive(self) -> None:
        """Say yes."""


def test_a_server_killed_again_and_again_under_load(
    rig: Rig, expected: dict[int, list[str]], eventually: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    if not rig.server.local:
        pytest.skip("only a private server is started again by its clients")
    server: EmbeddedServer = rig.server
    leave_half_finished_rows(rig, eventually)
    # So slow that it cannot end before the last kill, on whatever machine.
    worker, joined, loop = rig.worker("heir", step_s=0.2)
    thread, outcome = rig.start(worker, joined)
    kills = 0
    while thread.is_alive() and kills < 6:
        thread.join(0.15)
        if (pid := server.pid) is not None and thread.is_alive():
            os.kill(pid, signal.SIGKILL)
            kills += 1
            eventually(lambda killed=pid: server.pid != killed or not thread.is_alive(), seconds=20)
    loop.step_s = 0.002
    thread.join(60)
    assert kills == 6
    assert outcome == [Outcome.ENDED]
    rig.client = server.client()
    assert rig.results() == expected
