"""What can go wrong in a job, and the exit code that says so."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How `runner` ends; where several apply, the first of 1, 2, 4, 69, 75, 5, 6, 3, 0 does."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    FAILED_ROWS = 3
    INVALID = 4
    CANCELLED = 5
    LIMIT = 6
    LOG_UNREACHABLE = 69
    STOPPED = 75


class RunnerError(Exception):
    """A problem told to the user: a stable `code`, a `message` naming thing, limit and remedy, and the exit code."""

    def __init__(self, code: str, message: str, exit_code: ExitCode = ExitCode.INVALID) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.exit_code = exit_code
