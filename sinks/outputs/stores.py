"""Folders of whole files: on this machine, or on any file system that fsspec knows.

A file appears under its name when it is complete. On this machine that is a rename after a sync; object stores show an
upload when it is closed. Elsewhere a kill can leave half a file, which the manifest (`parts`) does not name.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from streamrunner.sinks.address import mask_url
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


class Store(Protocol):
    """A folder, held by this process where that can be. All methods raise OSError as the file system does."""

    name: str

    def sizes(self) -> dict[str, int]:
        """Every entry of the folder with its size in bytes."""

    def read(self, name: str) -> bytes:
        """A whole file."""

    def written(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file to write, which takes its name when the block is left without an exception."""

    def delete(self, name: str) -> None:
        """Remove a file."""

    def close(self) -> None:
        """Give the folder to whoever wants it next."""


class RemoteFault(OSError):
    """Whatever a remote file system raised, as the errors of a disk."""


class LocalStore:
    """A folder on this machine; one process at a time has it (flock on the folder itself)."""

    def __init__(self, path: Path) -> None:
        """Make and take the folder. Raises SinkError (`output_locked`, `output_exists`, `output_unwritable`)."""
        self.name = str(path)
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileExistsError:
            raise SinkError("output_exists", f"{path} is a file, and this output is a folder: move it away") from None
        except OSError as error:
            raise SinkError("output_unwritable", f"{path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise SinkError("output_locked", f"{path} is being written by another process") from None

    def sizes(self) -> dict[str, int]:
        """Every entry of the folder with its size in bytes; files that a kill left unnamed are removed."""
        for left in self._path.glob(".*.part"):
            left.unlink()
        return {one.name: one.stat().st_size for one in self._path.iterdir()}

    def read(self, name: str) -> bytes:
        """A whole file."""
        return (self._path / name).read_bytes()

    @contextmanager
    def written(self, name: str) -> Iterator[BinaryIO]:
        """A file to write, synced and renamed at the end."""
        part = self._path / f".{name}.part"
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path / name)
        os.fsync(self._fd)

    def delete(self, name: str) -> None:
        """Remove a file."""
        (self._path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Give the folder to whoever wants it next."""
        os.close(self._fd)


class RemoteStore:
    """A folder behind an fsspec URL (`s3://bucket/folder`); credentials come from the environment, as fsspec has it."""

    def __init__(self, url: str) -> None:
        """Raises SinkError (`output_unwritable`) for a URL that nothing here can open."""
        import fsspec

        self.name = mask_url(url)
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except Exception as error:
            raise SinkError("output_unwritable", f"{self.name} cannot be written: {error}") from error

    def sizes(self) -> dict[str, int]:
        """Every entry of the folder with its size in bytes."""
        with _told():
            self._fs.invalidate_cache()
            try:
                found: list[dict[str, Any]] = self._fs.ls(self._root, detail=True)
            except FileNotFoundError:
                return {}
            names = {str(one["name"]).rstrip("/").rpartition("/")[2]: int(one["size"] or 0) for one in found}
        names.pop("", None)
        return names

    def read(self, name: str) -> bytes:
        """A whole file."""
        with _told():
            return bytes(self._fs.cat_file(self._at(name)))

    @contextmanager
    def written(self, name: str) -> Iterator[BinaryIO]:
        """A file to write, uploaded as it grows and visible at the end."""
        with _told():
            self._fs.makedirs(self._root, exist_ok=True)
            with self._fs.open(self._at(name), "wb") as file:
                yield file

    def delete(self, name: str) -> None:
        """Remove a file."""
        with _told():
            self._fs.rm_file(self._at(name))

    def close(self) -> None:
        """Do nothing: nobody holds a remote folder."""

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


@contextmanager
def _told() -> Iterator[None]:
    """Errors of a remote file system are of any class; the caller knows how to wait for a disk."""
    try:
        yield
    except (OSError, SinkError):
        raise
    except Exception as error:
        raise RemoteFault(None, f"{type(error).__name__}: {error}") from error


def is_remote(path: str) -> bool:
    """Whether an output's path is a URL."""
    return "://" in path
