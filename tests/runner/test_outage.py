from __future__ import annotations

from streamrunner.runner.outage import OutageTeller
from streamrunner.sinks.faults import LogFault

GONE = LogFault("no_connection", "Connection refused")
LOADING = LogFault("loading", "it is still loading its data")
FULL = LogFault("oom", "it is out of memory")


def test_one_outage_is_told_once_however_many_threads_wait() -> None:
    said: list[str] = []
    teller = OutageTeller(said.append)
    writer, beat = teller.line(), teller.line()
    for _ in range(3):
        writer.wait(GONE)
        beat.wait(GONE)
    beat.back()
    writer.wait(LOADING)
    assert said == ["the log takes no writes, Connection refused: waiting, nothing is lost"]
    writer.back()
    assert len(said) == 2
    assert "again after" in said[1]


def test_a_reason_that_somebody_must_act_on_is_told_though_the_outage_goes_on() -> None:
    said: list[str] = []
    line = OutageTeller(said.append).line()
    for fault in (GONE, LOADING, FULL, FULL, GONE):
        line.wait(fault)
    assert [text.split(",")[1] for text in said] == [" Connection refused: waiting", " it is out of memory: waiting"]


def test_the_next_outage_is_told_again() -> None:
    said: list[str] = []
    line = OutageTeller(said.append).line()
    for _ in range(2):
        line.wait(GONE)
        line.back()
    assert len(said) == 4
