"""Pages of the KV cache: who holds them, and which computed ones can be used again.

    free list (least recently used first)          held (reference count > 0)
    [ 7 ][ 3* ][ 12* ]                             [ 1 ][ 4* ][ 9 ]          * known by its hash

A full page is named by the hash of its tokens and of all before them. A freed page keeps its name until it is handed
out for something else, so the free list is the cache: `find` may take a page back from its middle.

    held + free = num_blocks                                                      (checked by `check`)
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT_HASH = b""


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full page, from the name of the page before it. 128 bits: collisions are not a concern."""
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16, key=parent).digest()


class BlockPool:
    """Hands out pages by number, counts their holders, and finds computed ones by hash."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._holders = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with unknown content, or None (and nothing taken) if there are not enough."""
        if count > len(self._free):
            return None
        return [self._take_oldest() for _ in range(count)]

    def find(self, name: bytes) -> int | None:
        """Hold the page with this name, wherever it is; None if it is gone."""
        block = self._by_hash.get(name)
        if block is not None:
            self._free.pop(block, None)
            self._holders[block] += 1
        return block

    def register(self, block: int, name: bytes) -> None:
        """Name a held page whose content is being computed; the first page of a name keeps it, and a page its name."""
        if name not in self._by_hash and block not in self._hash_of:
            self._by_hash[name] = block
            self._hash_of[block] = name

    def free(self, blocks: Sequence[int]) -> None:
        """Let go of pages, the last of a sequence first: the beginning of a prompt is worth keeping longest."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None

    def check(self) -> None:
        """Assert the module's equation."""
        held = sum(1 for holders in self._holders if holders > 0)
        if held + len(self._free) != self.num_blocks or any(self._holders[block] for block in self._free):
            raise AssertionError(f"{held} pages held + {len(self._free)} free is not {self.num_blocks}")
        if {block: name for name, block in self._by_hash.items()} != self._hash_of:
            raise AssertionError("a page has a name that does not lead to it")

    def _take_oldest(self) -> int:
        block, _ = self._free.popitem(last=False)
        name = self._hash_of.pop(block, None)
        if name is not None:
            del self._by_hash[name]
        self._holders[block] = 1
        return block
