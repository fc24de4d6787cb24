"""What may be wrong before a job is: each check is one finding with what to do about it.

Nothing is started, changed or imported for it: no server, no model, no torch unless the GPU is asked about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamrunner.runner.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Status = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """One line: `warn` costs speed or safety, `fail` keeps jobs from running. remedy: what to do, empty for ok."""

    name: str
    status: Status
    message: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return self._asdict()


# Those without which no verb that reads or writes a log can work.
_LOG_CHECKS = frozenset({"data dir", "disk", "server", "server program"})


def examine(checks: Iterable[tuple[str, Callable[[], Iterable[Finding]]]]) -> Iterator[Finding]:
    """All findings in order; a check that breaks is a finding too, and keeps no other from being made."""
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - a diagnosis must not die of what it examines
            message = f"this could not be examined: {type(error).__name__}: {error}"
            yield Finding(name, "warn", message, "report it, with this line")


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """LOG_UNREACHABLE if the log cannot be used, INVALID if something else fails; warnings are OK."""
    failed = [one.name for one in findings if one.status == "fail"]
    if any(name in _LOG_CHECKS for name in failed):
        return ExitCode.LOG_UNREACHABLE
    return ExitCode.INVALID if failed else ExitCode.OK
