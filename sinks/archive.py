"""A job as files: what stays of it when it has left its server.

    jobs/<job id>/manifest.json        what there is: counts, SHA-256, and where each frame begins
                  log.jsonl.zst        the history, an entry a line
                  results.jsonl.zst    the payloads (large ones in place of their references)
                  ranges.jsonl.zst     the row ranges

Each file is a row of zstd frames, so `zstd -dc` reads it whole and a reader here only the frames that it needs. A
folder appears under its name when all of it is on disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_FRAME_ENTRIES = 1_000
_FRAME_BYTES = 4 << 20
_MANIFEST = "manifest.json"
# Fields whose value is JSON in the stream and stands as such in the line.
_JSON_FIELDS = frozenset({b"data", b"p", b"range"})
_NUMBERS = frozenset({b"v", b"time"})

Entry = tuple[bytes, dict[bytes, bytes]]


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One compressed piece: the id of its first entry, and where it stands in the file."""

    first: str
    offset: int
    size: int


class ArchivedStream(msgspec.Struct, frozen=True):
    """One file of an archive."""

    entries: int
    bytes: int
    sha256: str
    frames: list[Frame]


class Manifest(msgspec.Struct, frozen=True):
    """What an archive holds. announced_ms: when the job was submitted; last_id: the last entry of its log;
    done: the bitmap of finished rows, as hex digits."""

    version: int
    job: str
    name: str
    announced_ms: int
    last_id: str
    meta: dict[str, str]
    claims: dict[str, str]
    attempts: dict[str, str]
    done: str
    streams: dict[str, ArchivedStream]


class JobFolder(NamedTuple):
    """One archived job."""

    path: Path
    manifest: Manifest


class Archives:
    """The archived jobs of a data dir."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir / "jobs"

    def all(self) -> list[JobFolder]:
        """Every archive, oldest job first."""
        folders = [path.parent for path in self._root.glob(f"job_*/{_MANIFEST}")]
        return sorted((self._open(folder) for folder in folders), key=lambda one: one.manifest.announced_ms)

    def get(self, job_id: str) -> JobFolder | None:
        """The archive of one job."""
        folder = self._root / job_id
        return self._open(folder) if (folder / _MANIFEST).exists() else None

    def write(self, manifest: Manifest, streams: Mapping[str, Iterable[Entry]]) -> JobFolder:
        """Make an archive of these streams, by name; `manifest` lacks them. Raises SinkError (`archive_unwritable`)."""
        part, whole = self._root / f".{manifest.job}.part", self._root / manifest.job
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            written = {name: write_stream(stream_path(part, name), entries) for name, entries in streams.items()}
            done = msgspec.structs.replace(manifest, streams=written)
            _write_durably(part / _MANIFEST, msgspec.json.format(msgspec.json.encode(done), indent=1))
            _sync_folder(part)
            if whole.exists():
                shutil.rmtree(whole)
            part.rename(whole)
            _sync_folder(self._root)
        except OSError as error:
            raise SinkError("archive_unwritable", f"{whole} cannot be written: {error.strerror}") from error
        return JobFolder(whole, done)

    def _open(self, folder: Path) -> JobFolder:
        try:
            manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise SinkError("archive_damaged", f"{folder / _MANIFEST} cannot be read: {error}") from error
        if manifest.version > 1:
            raise SinkError("archive_damaged", f"{folder} was written by a newer release: upgrade streamrunner")
        return JobFolder(folder, manifest)


def stream_path(folder: Path, name: str) -> Path:
    """Where one stream of an archive stands."""
    return folder / f"{name}.jsonl.zst"


def check(folder: JobFolder) -> None:
    """Compare every file with the manifest. Raises SinkError (`archive_damaged`)."""
    for name, stream in folder.manifest.streams.items():
        path, digest = stream_path(folder.path, name), hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise SinkError("archive_damaged", f"{path} cannot be read: {error.strerror}") from error
        if digest.hexdigest() != stream.sha256:
            raise SinkError("archive_damaged", f"{path} is not what its manifest says: restore it from a copy")


def write_stream(path: Path, entries: Iterable[Entry]) -> ArchivedStream:
    """Write entries as frames of lines, and sync them."""
    import zstandard

    frames: list[Frame] = []
    digest, count = hashlib.sha256(), 0
    with path.open("wb") as file:
        for first, lines, num_entries in _blocks(entries):
            frame = zstandard.ZstdCompressor(write_checksum=True, write_content_size=True).compress(lines)
            frames.append(Frame(first, file.tell(), len(frame)))
            file.write(frame)
            digest.update(frame)
            count += num_entries
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return ArchivedStream(count, size, digest.hexdigest(), frames)


def read_frame(path: Path, frame: Frame) -> list[Entry]:
    """The entries of one frame. Raises SinkError (`archive_damaged`)."""
    import zstandard

    try:
        with path.open("rb") as file:
            file.seek(frame.offset)
            lines = zstandard.ZstdDecompressor().decompress(file.read(frame.size))
    except (OSError, zstandard.ZstdError) as error:
        raise SinkError("archive_damaged", f"{path} cannot be read at byte {frame.offset}: {error}") from error
    return [decode_line(line) for line in lines.splitlines()]


def encode_line(entry: Entry) -> bytes:
    """A stream entry as one line of JSON."""
    raw_id, fields = entry
    line: dict[str, Any] = {"id": raw_id.decode()}
    for name, value in fields.items():
        if name in _JSON_FIELDS:
            line[name.decode()] = msgspec.Raw(value if b"\n" not in value else _on_one_line(value))
        else:
            line[name.decode()] = int(value) if name in _NUMBERS else value.decode()
    return msgspec.json.encode(line)


def decode_line(line: bytes) -> Entry:
    """The inverse of `encode_line`."""
    fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    raw_id = msgspec.json.decode(fields.pop("id"), type=str).encode()
    return raw_id, {name.encode(): _field(name.encode(), bytes(value)) for name, value in fields.items()}


def _field(name: bytes, value: bytes) -> bytes:
    if name in _JSON_FIELDS or name in _NUMBERS:
        return value
    return msgspec.json.decode(value, type=str).encode()


def _on_one_line(value: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(value))


def _blocks(entries: Iterable[Entry]) -> Iterator[tuple[str, bytes, int]]:
    first, size = "", 0
    lines: list[bytes] = []
    for entry in entries:
        if not lines:
            first = entry[0].decode()
        line = encode_line(entry) + b"\n"
        lines.append(line)
        size += len(line)
        if len(lines) == _FRAME_ENTRIES or size >= _FRAME_BYTES:
            yield first, b"".join(lines), len(lines)
            lines, size = [], 0
    if lines:
        yield first, b"".join(lines), len(lines)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
