"""Where the log is, for programs: the same URL, folder and environment that the command line takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamrunner.sinks.server import LogServer

PREFIX = "sr"


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/streamrunner`."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "streamrunner"


class Place(NamedTuple):
    """An own Redis, or the private server of a data dir (which holds converted models in either case)."""

    redis_url: str | None
    data_dir: Path

    @classmethod
    def of(cls, redis_url: str | None, data_dir: str | os.PathLike[str] | None) -> Place:
        """What was given, else RUNNER_REDIS_URL and RUNNER_DATA_DIR, else config.yaml, else the XDG data home."""
        from streamrunner.runner.cli.config import default_map

        config = default_map(None)
        folder = data_dir or os.environ.get("RUNNER_DATA_DIR") or config.get("data_dir")
        url = redis_url or os.environ.get("RUNNER_REDIS_URL") or config.get("redis_url")
        return cls(url or None, Path(folder or default_data_dir()))

    def open(self) -> LogServer:
        """The log's server. Raises SinkError."""
        from streamrunner.sinks.server import open_server

        return open_server(self.redis_url, self.data_dir)
