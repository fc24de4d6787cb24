"""An audit file of every sequence handed to the engine, for whoever must prove that nothing finished runs twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamrunner.runner.flight import RowRun

ADMISSIONS_ENV = "RUNNER_ADMISSIONS_FILE"


class AdmissionFile:
    """Appends `<job> <row> <choice> <attempt> <claim> <resumed tokens> <pid>` lines; does nothing without a path."""

    def __init__(self, path: Path | None, job_id: str) -> None:
        self._path = path
        self._job_id = job_id

    @classmethod
    def from_env(cls, job_id: str) -> AdmissionFile:
        """The file that RUNNER_ADMISSIONS_FILE names, if any."""
        name = os.environ.get(ADMISSIONS_ENV)
        return cls(Path(name) if name else None, job_id)

    def note(self, run: RowRun, choice: int) -> None:
        """Record one admission before the engine sees it; one O_APPEND write, so that processes share the file."""
        if self._path is None:
            return
        resumed = len(run.choices[choice].token_ids)
        line = f"{self._job_id} {run.row.index} {choice} {run.attempt} {run.claim} {resumed} {os.getpid()}\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())
