"""Errors of the log and its servers: each names the thing, the limit and the remedy, under a stable code."""

from __future__ import annotations


class SinkError(Exception):
    """Something about the log is wrong and the caller has to know.

    `code` is stable and meant for programs (log_unreachable, log_auth, log_url, log_closed, server_policy,
    server_version, server_missing, server_failed, data_dir_locked, data_dir_foreign, data_dir_unusable,
    aof_damaged, library_conflict, log_conflict …); `message` is meant for people and holds no credentials.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[SinkError], tuple[str, ...]]:
        """Errors cross process borders, and `Exception` alone would rebuild them with one argument."""
        return type(self), (self.code, self.message)


class LogUnreachable(SinkError):
    """No server answers at the log's address; the same command can be run again later. Code `log_unreachable`."""

    def __init__(self, message: str) -> None:
        super().__init__("log_unreachable", message)

    def __reduce__(self) -> tuple[type[SinkError], tuple[str, ...]]:
        return type(self), (self.message,)
