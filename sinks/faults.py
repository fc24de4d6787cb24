"""What keeps the log from taking a write: which faults pass by themselves, and what to tell people meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from redis import exceptions as redis_errors

from streamrunner.sinks.errors import SinkError

# redis-py counts LOADING and too many clients among its connection errors.
LOST = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)

_CONNECTION = "no_connection"
# The first word of a server's refusal. Whatever is not listed here does not pass: a bug of ours, or a foreign key.
_PASSING = {
    "LOADING": "it is still loading its data",
    "READONLY": "it is a read-only replica: waiting for a primary at its address",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "NOREPLICAS": "too few of its replicas are there (min-replicas-to-write)",
    "CLUSTERDOWN": "its cluster is down",
    "TRYAGAIN": "its cluster is moving the job's slot",
    "OOM": "it is out of memory: raise its maxmemory or delete what is not needed",
    "MISCONF": "it cannot write to its own disk: make space there",
    "BUSY": "a script keeps it busy",
    "UNBLOCKED": "it is failing over",
}
# redis-py takes the first word off where it has a class for it.
_CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.BusyLoadingError, "LOADING"),
    (redis_errors.ReadOnlyError, "READONLY"),
    (redis_errors.MasterDownError, "MASTERDOWN"),
    (redis_errors.ClusterDownError, "CLUSTERDOWN"),
    (redis_errors.TryAgainError, "TRYAGAIN"),
    (redis_errors.OutOfMemoryError, "OOM"),
)
_NO_LIBRARY = "Function not found"


class LogFault(NamedTuple):
    """Why the log cannot take a write now. `code` is stable (no_connection, loading, readonly, oom, …)."""

    code: str
    message: str


class Outage(NamedTuple):
    """A time during which the log took no writes: how long, and why at last."""

    seconds: float
    fault: LogFault


def passing_fault(error: Exception, address: str) -> LogFault:
    """Say in words what is wrong if waiting may help.

    Raises SinkError `log_denied` where the user lacks a right, `log_damaged` where some of the job's keys are gone, and
    `error` itself where trying again is no use.
    """
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.NoPermissionError):
        raise SinkError("log_denied", f"the log at {address} refuses this user: {error}. {_remedy(error)}") from None
    word = _word_of(error)
    if word in _PASSING:
        return LogFault(word.lower(), _PASSING[word])
    if isinstance(error, redis_errors.ResponseError):
        if word == "NOGROUP":
            raise _damaged(error, address) from None
        if _NO_LIBRARY in str(error):
            return LogFault("no_library", "it has lost the function library")
        raise error
    return LogFault(_CONNECTION, str(error) or "no connection")


def _word_of(error: Exception) -> str:
    for kind, word in _CLASSES:
        if isinstance(error, kind):
            return word
    return str(error).partition(" ")[0] if isinstance(error, redis_errors.ResponseError) else ""


def _damaged(error: Exception, address: str) -> SinkError:
    return SinkError(
        "log_damaged",
        f"the log at {address} has lost a part of this job ({error}): did somebody delete keys? `runner fsck JOB` says "
        "what is left; finished rows are in the log as long as its entries are",
    )


def _remedy(error: Exception) -> str:
    if "function" in str(error).lower():
        return "Let a user who may load functions run `runner submit` first; deploy/redis/users.acl has the rights"
    return "Check the credentials of --redis-url (RUNNER_REDIS_URL); deploy/redis/users.acl has the rights"
