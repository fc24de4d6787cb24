"""Lowering the CPU class is a hint that never fails."""

from __future__ import annotations

import os
import threading

import pytest

from streamrunner.sinks.scheduling import lower_cpu_class


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has scheduling classes")
def test_only_the_calling_thread_moves_to_the_batch_class() -> None:
    seen: list[int] = []

    def work() -> None:
        lower_cpu_class()
        seen.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_system_that_refuses_or_knows_no_classes_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_cpu_class(2**22 + 1)  # no such process
    monkeypatch.delattr(os, "sched_setscheduler", raising=False)
    lower_cpu_class()
