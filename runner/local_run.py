"""Works on a job in the process of whoever asks, and stops in order at Ctrl-C."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamrunner.runner.display import Display
from streamrunner.runner.job_status import read_status
from streamrunner.runner.session import Session, SessionOptions
from streamrunner.runner.signals import StopFlag
from streamrunner.runner.submission import find_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrunner.runner.client import Client


def run_here(client: Client, job_id: str, *, progress: bool) -> None:
    """Bring a job to its end. Raises KeyboardInterrupt after a Ctrl-C, when all that is done is kept."""
    job = client.ask(lambda raw: find_job(raw, job_id))
    ended = client.ask(lambda raw: read_status(raw, job.keys, job.spec.name)).ended
    stop, options = StopFlag(), SessionOptions(client.data_dir, client.log_timeout_s)
    with Display(quiet=not progress) as display, _interruptible(stop):
        session = Session(job, client.server, options, stop, display)
        if ended:
            session.export()
        else:
            session.run()
    if stop.is_set():
        raise KeyboardInterrupt(f"{job_id}: {stop.reason}")


@contextmanager
def _interruptible(stop: StopFlag) -> Iterator[None]:
    """Ctrl-C sets the flag instead of tearing through the work; only the main thread hears it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop.set("SIGINT"))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
