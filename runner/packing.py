"""What a packed file holds, as a stream in flat memory; damage and a missing end are errors, never a shorter file."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import zstandard

from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator

Packing = Literal["plain", "gzip", "zstd"]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BUFFER = 1 << 16
# Four bytes of zstd can stand for 128 KiB: what one read unpacks stays within some MiB even of a hostile file.
_FED = 1 << 12


def packing_of(head: bytes) -> Packing:
    """What the first bytes of a file say."""
    return "gzip" if head.startswith(_GZIP) else "zstd" if head.startswith(_ZSTD) else "plain"


def unpacked(file: BinaryIO, packing: Packing, name: str) -> BinaryIO:
    """The content of a packed file. Several members or frames in a row are one content.

    Reading it raises RunnerError (`input_unreadable`) where the file is damaged or cut off.
    """
    if packing == "plain":
        return file
    packed: Any = gzip.GzipFile(fileobj=file) if packing == "gzip" else _ZstdFile(file)
    return io.BufferedReader(_Told(packed, name), _BUFFER)


class _Told(io.RawIOBase):
    """Damage inside a packed file, told as an error that names it."""

    def __init__(self, packed: Any, name: str) -> None:
        self._packed = packed
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data: bytes = self._packed.read(len(buffer))
        except (EOFError, zlib.error, OSError, zstandard.ZstdError) as error:
            raise RunnerError("input_unreadable", f"{self._name} is damaged or cut off: {error}") from error
        buffer[: len(data)] = data
        return len(data)


class _ZstdFile:
    """zstandard's own reader takes a file that is cut off for a shorter one."""

    def __init__(self, file: BinaryIO) -> None:
        self._chunks = _zstd_chunks(file)
        self._rest = b""

    def read(self, size: int) -> bytes:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._rest = chunk
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _zstd_chunks(file: BinaryIO) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    is_open = False
    while data := file.read(_FED):
        while data:
            if not is_open:
                frame, is_open = decompressor.decompressobj(), True
            yield frame.decompress(data)
            data = frame.unused_data
            is_open = not frame.eof
    if is_open:
        raise EOFError("the last frame has no end")
