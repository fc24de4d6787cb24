from __future__ import annotations

import gzip
import io
from typing import TYPE_CHECKING

import pytest
import zstandard

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.packing import packing_of, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENT = b"".join(b"line %d\n" % i for i in range(5000))


def zst(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def read(packed: bytes) -> bytes:
    with unpacked(io.BytesIO(packed), packing_of(packed), "rows.zst") as content:
        return content.read()


@pytest.mark.parametrize("pack", [gzip.compress, zst])
def test_what_was_packed_comes_out_and_so_does_what_was_appended(pack: Callable[[bytes], bytes]) -> None:
    assert read(pack(CONTENT)) == CONTENT
    assert read(pack(CONTENT) + pack(b"") + pack(b"more")) == CONTENT + b"more"


@pytest.mark.parametrize("pack", [gzip.compress, zst])
@pytest.mark.parametrize("cut", [5, 100, -1, -9])
def test_a_file_without_its_end_is_not_taken_for_a_shorter_one(pack: Callable[[bytes], bytes], cut: int) -> None:
    with pytest.raises(RunnerError, match=r"rows\.zst is damaged or cut off"):
        read(pack(CONTENT)[:cut])


def test_what_is_not_packed_is_left_alone() -> None:
    file = io.BytesIO(CONTENT)
    assert unpacked(file, packing_of(CONTENT), "rows.zst") is file
