"""`server.json`: what wrote a data dir, on which host, and where its server listens."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.versions import ServerVersion, parse_number

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.embedded.host import Host

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One line of `server.json` each. `host_id` is empty where a user removed that line to move the data dir."""

    format: int = _FORMAT
    server: str
    version: str
    binary: str
    host_id: str = ""
    host_name: str = ""
    filesystem: str = ""
    socket: str

    @property
    def written_by(self) -> ServerVersion:
        """The newest server that has written here."""
        return ServerVersion(self.server, parse_number(self.version))

    def check_host(self, host: Host, path: Path) -> None:
        """Refuse another machine's data dir. Raises SinkError data_dir_foreign."""
        if self.host_id and self.host_id != host.id:
            raise SinkError(
                "data_dir_foreign",
                f"the data dir belongs to the host {self.host_name}, this is {host.name}; locks do not reach across "
                f"hosts. Use another --data-dir; or, once nothing on {self.host_name} uses it any more, remove the "
                f'line "host_id" from {path}',
            )


def read_pin(path: Path) -> Pin | None:
    """Return the pin, or None for a new data dir. Raises SinkError data_dir_unusable or server_version."""
    try:
        fields = json.loads(path.read_bytes())
        newer = fields["format"] > _FORMAT
        pin = None if newer else Pin(**{name: fields[name] for name in Pin.__slots__ if name in fields})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SinkError(
            "data_dir_unusable",
            f"{path} cannot be read ({error}), so it is unknown which server wrote the log beside it. Restore that "
            "file, or use another --data-dir",
        ) from error
    if pin is None:
        raise SinkError("server_version", f"{path} was written by a newer streamrunner; use that one here")
    return pin


def write_pin(path: Path, pin: Pin) -> None:
    """Replace the pin so that a crash leaves the old or the new one. Raises OSError."""
    draft = path.with_suffix(".json.new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(pin), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
