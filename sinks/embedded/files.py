"""Where the private server keeps what: one folder of the data dir, for this user only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """Paths inside `<data dir>/server`."""

    folder: Path

    @property
    def pin(self) -> Path:
        """Which server writes here, on which host, and where its socket is."""
        return self.folder / "server.json"

    @property
    def server_lock(self) -> Path:
        """Held by the server itself, through an inherited descriptor; its text is the server's process id."""
        return self.folder / "server.lock"

    @property
    def reaper_lock(self) -> Path:
        """Held by the reaper in the same way."""
        return self.folder / "reaper.lock"

    @property
    def users_lock(self) -> Path:
        """Shared by all clients for their lifetime; the reaper waits for it exclusively."""
        return self.folder / "users.lock"

    @property
    def start_lock(self) -> Path:
        """Held while somebody looks for, repairs or starts the server."""
        return self.folder / "start.lock"

    @property
    def log(self) -> Path:
        """The server's own messages."""
        return self.folder / "server.log"

    @property
    def aof(self) -> Path:
        """Folder of the append-only files."""
        return self.folder / "appendonlydir"

    @property
    def damaged(self) -> Path:
        """Folder of what repairs cut off."""
        return self.folder / "damaged"


def prepare_files(data_dir: Path) -> ServerFiles:
    """Make the folder. Raises SinkError data_dir_unusable."""
    folder = data_dir.expanduser().absolute() / "server"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise SinkError(
            "data_dir_unusable",
            f"cannot use the data dir {data_dir}: {error.strerror}. Choose another with --data-dir (RUNNER_DATA_DIR)",
        ) from error
    return ServerFiles(folder)
