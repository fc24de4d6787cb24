"""Which machine and file system a data dir is on: flock and unix sockets work within one machine only."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from streamrunner.sinks.errors import SinkError

_MOUNTS = Path("/proc/self/mounts")
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))

_NETWORK = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "smb3",
        "smbfs",
        "wekafs",
        "fuse.beegfs",
        "fuse.ceph",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.mount-s3",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "fuse.blobfuse",
        "fuse.blobfuse2",
    }
)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: a name for people, and an id that survives renaming (hashed, for machine ids are confidential)."""

    name: str
    id: str


def this_host() -> Host:
    """Identify this machine; in containers without a machine id the host name has to do."""
    name = os.uname().nodename
    seed = next((text for path in _MACHINE_IDS if (text := _read(path).strip())), name)
    return Host(name, hashlib.sha256(f"streamrunner {seed}".encode()).hexdigest()[:16])


def filesystem_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that holds a path, "" where the system does not tell (macOS).

    `mounts` is text in the form of /proc/self/mounts, by default that file. Of several mounts on one point the
    last one counts.
    """
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in (_read(_MOUNTS) if mounts is None else mounts).splitlines():
        fields = line.split(" ")
        point = _unescape(fields[1]) if len(fields) > 2 else ""
        if point and len(point) >= len(best) and (f"{real}/").startswith(f"{point.rstrip('/')}/"):
            best, kind = point, fields[2]
    return kind


def check_filesystem(path: Path, kind: str) -> None:
    """Refuse network file systems. Raises SinkError data_dir_foreign."""
    if kind in _NETWORK:
        raise SinkError(
            "data_dir_foreign",
            f"{path} is on a network file system ({kind}), where locks do not keep two servers from writing the same "
            "files. Choose a --data-dir on a local disk, or give the --redis-url of a shared server",
        )


def _unescape(field: str) -> str:
    r"""Undo the octal escapes of mount points ("\040" for a blank)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
