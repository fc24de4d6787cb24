"""Who computes how many tokens in the next step.

Running sequences first, in order of arrival; what is left of the token budget goes to waiting ones, long prompts in
chunks. When pages run out, the youngest running sequence gives its pages back and is recomputed later (same tokens,
same noise, so the same output). No phases: a decode is a sequence with one pending token.

A prompt whose own log-probabilities are wanted needs the logits of all its tokens: it is computed without prefix reuse,
and few rows at a time, since a row of logits is large.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamrunner.engine.block_pool import BlockPool
    from streamrunner.engine.sequence import Sequence


# Rows of logits for prompts in one step: at a vocabulary of 150,000, 75 MB in float32.
_SCORED_ROWS = 128


class Chunk(NamedTuple):
    """Tokens [start, start + num_tokens) of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the chunk ends with the last known token, so that the next one can be sampled, and is wanted."""
        return self.completes and not self.sequence.is_full

    @property
    def completes(self) -> bool:
        """Whether the chunk ends with the last known token."""
        return self.start + self.num_tokens == len(self.sequence.token_ids)

    @property
    def scored(self) -> range:
        """Positions whose logits say how likely the prompt token behind them was, as far as that is wanted."""
        sequence = self.sequence
        if sequence.scores is None:
            return range(0)
        return range(max(self.start, len(sequence.scores)), min(self.start + self.num_tokens, sequence.num_prompt - 1))


class Scheduler:
    """Owns the queues and the pages of sequences; the pool owns the pages themselves."""

    def __init__(
        self, pool: BlockPool, *, block_size: int, max_num_seqs: int, max_num_batched_tokens: int, prefix_caching: bool
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens
        self._prefix_caching = prefix_caching
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._scored_rows = _SCORED_ROWS

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and give its pages back."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._release(sequence)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step; their pages are allocated and their tokens count as computed from here on."""
        budget, before = self._budget, self.num_preemptions
        self._scored_rows = _SCORED_ROWS
        chunks: list[Chunk] = []
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = self._count(sequence, budget)
            if count == 0:
                index += 1
                continue
            if not self._cover(sequence, count):
                continue  # somebody was preempted, perhaps this one: look at the same place again
            chunks.append(self._advance(sequence, count))
            budget -= count
            index += 1
        # Whoever was preempted for want of pages must not take them back in the same step.
        return chunks if self.num_preemptions > before else chunks + self._admit(budget)

    def _admit(self, budget: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            self._reuse_prefix(sequence)
            count = self._count(sequence, budget)
            if count == 0 or not self._allocate(sequence, count):
                self._release(sequence)
                break
            self.running.append(self.waiting.popleft())
            chunks.append(self._advance(sequence, count))
            budget -= count
        return chunks

    def _count(self, sequence: Sequence, budget: int) -> int:
        """How many tokens of a sequence this step may compute."""
        count = min(sequence.num_pending, budget)
        return min(count, self._scored_rows) if sequence.num_unscored else count

    def _advance(self, sequence: Sequence, count: int) -> Chunk:
        chunk = Chunk(sequence, sequence.num_computed, count)
        sequence.num_computed += count
        self._scored_rows -= len(chunk.scored)
        if self._prefix_caching:
            self._register(sequence, chunk.start)
        return chunk

    def _register(self, sequence: Sequence, start: int) -> None:
        """Name the pages this step fills. Later sequences of the same step may use them already: in every layer all
        K and V are written before anybody attends, so n choices of one prompt compute it once."""
        hashes = sequence.full_block_hashes(self._block_size)
        for index in range(start // self._block_size, sequence.num_computed // self._block_size):
            self._pool.register(sequence.blocks[index], hashes[index])

    def _reuse_prefix(self, sequence: Sequence) -> None:
        if not self._prefix_caching or sequence.blocks or sequence.num_unscored:
            return
        hashes = sequence.full_block_hashes(self._block_size)
        # The last token is always computed: its logits are what is wanted.
        for name in hashes[: (len(sequence.token_ids) - 1) // self._block_size]:
            block = self._pool.find(name)
            if block is None:
                break
            sequence.blocks.append(block)
        sequence.num_computed = sequence.num_cached = len(sequence.blocks) * self._block_size

    def _cover(self, sequence: Sequence, count: int) -> bool:
        """Make room for `count` more tokens; False if a sequence was preempted for it and all must be looked at
        again.
        """
        if self._allocate(sequence, count):
            return True
        self._preempt(self.running[-1])
        return False

    def _allocate(self, sequence: Sequence, count: int) -> bool:
        needed = -(-(sequence.num_computed + count) // self._block_size) - len(sequence.blocks)
        blocks = self._pool.allocate(max(needed, 0))
        if blocks is None:
            return False
        sequence.blocks += blocks
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self._pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = 0
