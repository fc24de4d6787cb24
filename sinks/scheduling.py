"""CPU class of the processes and threads that serve the engine and must not pre-empt it."""

from __future__ import annotations

import os


def lower_cpu_class(pid: int = 0) -> None:
    """Put a process or thread (0 = the calling thread) into SCHED_BATCH, where the system has it.

    A wake-up in the normal class pre-empts a compute thread, and then the whole engine step waits for that thread.
    It is a hint: where the system refuses, nothing is lost but a few per cent of speed.
    """
    try:
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):  # AttributeError: macOS has no scheduling classes
        return
