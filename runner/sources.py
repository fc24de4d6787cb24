"""Where an input lies: local files, globs, standard input, and whatever fsspec opens. Each file is a source.

Local paths are relative to the job file. A glob's files are read in the order of their names.
"""

from __future__ import annotations

import glob
import io
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

STDIN = "-"
# Their servers need not answer a request for part of a file.
_COPIED_PROTOCOLS = ("http://", "https://")
# A range is fetched in one request up to this size; a larger one is read in pieces.
_MAX_FETCH = 64 << 20


class Source(NamedTuple):
    """One file of an input. uri: an absolute path, a URL, or `-`. name: what the user calls it."""

    uri: str
    name: str

    @property
    def is_copied(self) -> bool:
        """Whether it can be read only once from start to end, so that a resume needs a copy."""
        return self.uri == STDIN or self.uri.startswith(_COPIED_PROTOCOLS)

    @property
    def suffix(self) -> str:
        """The part of its name from the last dot on, in lower case, a query left off."""
        name = self.name.partition("?")[0] if is_url(self.uri) else self.name
        return Path(name).suffix.lower()


def is_url(path: str) -> bool:
    """Whether fsspec is to open it."""
    return "://" in path


def find_sources(path: str, base: Path) -> list[Source]:
    """The files that `input.path` means. Raises RunnerError (`input_missing`, `input_unreadable`, `missing_driver`)."""
    if path == STDIN:
        return [Source(STDIN, "standard input")]
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    sources = _remote_sources(path) if is_url(path) else _local_sources(base / Path(path).expanduser())
    if not sources:
        raise RunnerError("input_missing", f"no file matches {path}: check the pattern, it starts from {base}")
    return sources


def open_source(uri: str, offset: int = 0, size: int | None = None) -> BinaryIO:
    """Open a file at `offset`. size: how much of it will be read, at most.

    Raises RunnerError (`input_missing`, `input_unreadable`, `missing_driver`).
    """
    if uri == STDIN:
        return _stdin()
    if is_url(uri):
        return _open_remote(uri, offset, size)
    file = _open_local(Path(uri))
    file.seek(offset)
    return file


def _local_sources(path: Path) -> list[Source]:
    if not glob.has_magic(str(path)) or path.exists():
        return [Source(str(path.absolute()), path.name)]
    found = sorted(one for one in glob.glob(str(path), recursive=True) if Path(one).is_file())  # noqa: PTH207 - Path.glob takes no absolute pattern
    return [Source(str(Path(one).absolute()), Path(one).name) for one in found]


def _remote_sources(url: str) -> list[Source]:
    if not glob.has_magic(url.partition("?")[0]) or url.startswith(_COPIED_PROTOCOLS):
        return [Source(url, url.rstrip("/").rpartition("/")[2] or url)]

    def find() -> list[Source]:
        system, path = _file_system(url)
        found = [str(system.unstrip_protocol(one)) for one in sorted(system.glob(path))]
        return [Source(one, one.rpartition("/")[2]) for one in found]

    return _asked(url, find)


def _file_system(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path)


def _open_remote(url: str, offset: int, size: int | None) -> BinaryIO:
    def fetch() -> BinaryIO:
        system, path = _file_system(url)
        if size is not None and size <= _MAX_FETCH:
            return io.BytesIO(system.cat_file(path, start=offset, end=offset + size))
        file = cast("BinaryIO", system.open(path, "rb"))
        if offset:
            file.seek(offset)
        return io.BufferedReader(cast("Any", file), _MAX_FETCH >> 6)

    return _asked(url, fetch)


def _asked(url: str, question: Callable[[], T]) -> T:
    """Drivers raise errors of their own libraries; each becomes one of ours that names the file."""
    shown = shown_uri(url)
    try:
        return question()
    except FileNotFoundError as error:
        raise RunnerError("input_missing", f"there is no input file {shown}") from error
    except ImportError as error:
        raise RunnerError("missing_driver", _driver_advice(url, shown, error)) from error
    except Exception as error:
        detail = str(error).partition("\n")[0] or type(error).__name__
        raise RunnerError("input_unreadable", f"{shown} cannot be read: {detail}") from error


def _driver_advice(url: str, shown: str, error: ImportError) -> str:
    packages = {
        "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp",
        "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "sftp": "paramiko", "ssh": "paramiko",
        "oci": "ocifs", "oss": "ossfs", "webhdfs": "requests",
    }  # fmt: skip
    package = packages.get(url.partition("://")[0].rpartition("::")[2])
    if package is None:
        return f"{shown} needs a driver that is not installed: {error}"
    return f"{shown} needs the package {package}, which is not installed: `pip install {package}`, then run it again"


def shown_uri(uri: str) -> str:
    """A URL without the name and password that may stand in it."""
    scheme, found, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{found}{host.rpartition('@')[2]}{slash}{path}" if found else uri


def _stdin() -> BinaryIO:
    if sys.stdin is None or sys.stdin.isatty():
        raise RunnerError(
            "input_unreadable", "input.path is `-` and nothing is piped in: `runner submit job.yaml < rows`"
        )
    return sys.stdin.buffer


def _open_local(path: Path) -> BinaryIO:
    try:
        # Asked first: a pipe would not open until somebody writes to it.
        is_regular = stat.S_ISREG(path.stat().st_mode)
        file = path.open("rb") if is_regular else None
    except FileNotFoundError as error:
        raise RunnerError("input_missing", f"there is no input file {path}") from error
    except (OSError, ValueError) as error:
        detail = error.strerror if isinstance(error, OSError) else error
        raise RunnerError("input_unreadable", f"{path} cannot be read: {detail}") from error
    if file is None:
        raise RunnerError(
            "input_unreadable",
            f"{path} is no regular file: save the rows to one, or pipe them in with `input: {{path: -}}`",
        )
    return file
