from __future__ import annotations

import signal

import pytest

from streamrunner.runner.signals import StopFlag


@pytest.fixture
def flag() -> StopFlag:
    return StopFlag()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_ends_a_spot_machine_asks_to_stop(flag: StopFlag, number: signal.Signals) -> None:
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        flag.install()
        assert not flag.is_set()
        signal.raise_signal(number)
        assert flag.is_set()
        assert flag.reason == number.name
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_under_nohup_a_hangup_stays_ignored(flag: StopFlag) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        flag.install()
        signal.raise_signal(signal.SIGHUP)
        assert not flag.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
        for one, handler in handlers.items():
            signal.signal(one, handler)


def test_the_first_reason_stays(flag: StopFlag) -> None:
    flag.set("SIGTERM")
    flag.set("SIGINT")
    assert flag.reason == "SIGTERM"
    assert flag.wait(0)
