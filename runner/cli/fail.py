"""From errors to one line on stderr and a documented exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.terminal import clean
from streamrunner.sinks.errors import LogUnreachable, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

_INVALID = frozenset({
    "job_not_found", "job_ambiguous", "bad_cursor", "output_exists", "output_locked", "output_unwritable",
    "results_missing", "job_archived", "archive_damaged", "archive_unwritable",
})  # fmt: skip
# The log has all results; the same command completes the output.
_TO_BE_COMPLETED = frozenset({"output_unfinished", "output_changed", "output_disk_full"})


def guarded(command: Callable[[], Any]) -> int:
    """Run a command and return the exit code; nothing a user did ends in a traceback."""
    try:
        result = command()
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.STOPPED
    except BrokenPipeError:
        # The reader of our output went away (`runner events | head`): not an error; keep the interpreter's exit quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - the last resort: an exit code instead of a traceback
        return _report(error)
    return int(result) if isinstance(result, int) else ExitCode.OK


def exit_code_of(error: Exception) -> int | None:
    """The documented exit code of an error of ours; None for anything unforeseen."""
    if isinstance(error, RunnerError):
        return int(error.exit_code)
    if isinstance(error, LogUnreachable):
        return ExitCode.LOG_UNREACHABLE
    if isinstance(error, SinkError) and error.code in _TO_BE_COMPLETED:
        return ExitCode.STOPPED
    if isinstance(error, SinkError):
        return ExitCode.INVALID if error.code in _INVALID else ExitCode.LOG_UNREACHABLE
    # The engine's errors, recognised without importing the engine.
    if hasattr(error, "code") and hasattr(error, "message"):
        return ExitCode.INVALID
    return None


def _report(error: Exception) -> int:
    code = exit_code_of(error)
    if code is None:
        return _report_internal(error)
    _tell(f"error: {clean(error.message)} [{error.code}]")  # type: ignore[attr-defined]
    return code


def _tell(message: str) -> None:
    """To stderr, unless nobody reads it any more: the exit code still says what happened."""
    try:
        click.echo(message, err=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _report_internal(error: Exception) -> int:
    import redis

    if isinstance(error, redis.ConnectionError | redis.TimeoutError | redis.ResponseError):
        told = _told_by_server(error)
        if told is not None:
            return _report(told)
    if os.environ.get("RUNNER_TRACEBACK"):
        raise error
    _tell(
        f"error: internal fault: {type(error).__name__}: {clean(str(error))} [internal]\n"
        "This is a bug in streamrunner (RUNNER_TRACEBACK=1 shows where). Finished rows are safe: run it again."
    )
    return ExitCode.INTERNAL


def _told_by_server(error: Exception) -> SinkError | None:
    """A refusal of the log's server in our words; None for one that is a bug of ours."""
    from streamrunner.sinks.faults import passing_fault

    try:
        fault = passing_fault(error, "--redis-url")
    except SinkError as refused:
        return refused
    except Exception:  # noqa: BLE001 - the very error, raised again
        return None
    return LogUnreachable(f"the log does not answer as it should: {fault.message}")
