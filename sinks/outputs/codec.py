"""Compression in frames: each holds whole records and can be read by itself, so a torn last one is simply cut off.

plain   record record rec│                      a frame is a record
gzip    [record record][record rec│             a frame is a member; `zcat` and every reader take many of them
zstd    [record record][record rec│             a frame is a frame; `zstdcat` takes many of them
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import PurePath

_CHUNK = 1 << 18
_GZIP = 16 + zlib.MAX_WBITS


class Frame(NamedTuple):
    """What a whole frame holds, and where it ends in the file."""

    content: bytes
    end: int


class DamagedFrames(Exception):
    """The file is not compressed this way, or was damaged before its end."""


class Codec(Protocol):
    """A compression whose frames can be appended."""

    def compress(self, content: bytes) -> bytes:
        """One frame."""

    def frames(self, file: BinaryIO) -> Iterator[Frame]:
        """The whole frames from the file's beginning; a torn last one is left out. Raises DamagedFrames."""

    def may_begin_with(self, start: bytes) -> bool:
        """Whether these bytes could be the beginning of such a file."""


class _Compressed:
    """Frames of a decompressor that says where its input ended (`eof`, `unused_data`)."""

    magic: bytes

    def compress(self, content: bytes) -> bytes:
        """One frame."""
        return self._compress(content)

    def frames(self, file: BinaryIO) -> Iterator[Frame]:
        """The whole frames from the file's beginning. Raises DamagedFrames."""
        position, rest = 0, b""
        while True:
            reader, parts, num_read = self._new_reader(), [], 0
            while not reader.eof:
                chunk = rest or file.read(_CHUNK)
                if not chunk:
                    return
                parts.append(_fed(reader, chunk))
                num_read += len(chunk)
                rest = b""
            rest = reader.unused_data
            position += num_read - len(rest)
            yield Frame(b"".join(parts), position)

    def may_begin_with(self, start: bytes) -> bool:
        """Whether these bytes could be the beginning of such a file."""
        return self.magic.startswith(start[: len(self.magic)])

    def __init__(self, compress: Callable[[bytes], bytes], new_reader: Callable[[], Any], magic: bytes) -> None:
        self._compress = compress
        self._new_reader = new_reader
        self.magic = magic


def _fed(reader: Any, chunk: bytes) -> bytes:
    try:
        content: bytes = reader.decompress(chunk)
    except Exception as error:
        # zlib.error or zstandard.ZstdError, which is not to be imported for its name.
        raise DamagedFrames(str(error)) from error
    return content


def gzip_codec() -> Codec:
    """gzip, at the level that costs a tenth of the default's time for nine tenths of its gain."""

    def compress(content: bytes) -> bytes:
        writer = zlib.compressobj(level=3, wbits=_GZIP)
        return writer.compress(content) + writer.flush()

    return _Compressed(compress, lambda: zlib.decompressobj(wbits=_GZIP), b"\x1f\x8b\x08")


def zstd_codec() -> Codec:
    """zstd at its default level, with a checksum in every frame."""
    import zstandard

    writer = zstandard.ZstdCompressor(write_checksum=True)
    return _Compressed(writer.compress, lambda: zstandard.ZstdDecompressor().decompressobj(), b"\x28\xb5\x2f\xfd")


def codec_of(path: PurePath) -> Codec | None:
    """The codec that a file's last suffix names; None for plain files."""
    makers = {".gz": gzip_codec, ".zst": zstd_codec}
    maker = makers.get(path.suffix)
    return maker() if maker else None
