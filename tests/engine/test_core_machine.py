"""Core, scheduler and pool under any order of calls: no page leaks or is freed twice, and outputs never change.

The model reads nothing but the pages: it writes tokens into their slots, and the next token is a hash of all that the
sequence's pages hold, position by position. A page that is shared wrongly, reused too early or lost changes the output.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.core import EngineCore
from streamrunner.engine.params import SamplingParams

if TYPE_CHECKING:
    from streamrunner.engine.batch import PackedBatch
    from streamrunner.engine.sequence import Sequence

VOCAB = 5
BLOCK = 16
NUM_BLOCKS = 8
MAX_LEN = 96
STEMS = [[1] * 36, [1] * 16 + [2] * 17, [3]]


def next_token(history: list[int]) -> int:
    return hashlib.blake2b(bytes(history), digest_size=1).digest()[0] % VOCAB


def continuation(prompt: list[int], count: int) -> list[int]:
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


class PageReader:
    """A model by the engine's contract whose only memory is the cache."""

    config = SimpleNamespace(max_position=MAX_LEN, vocab_size=VOCAB, num_layers=1, num_kv_heads=1, head_dim=1)
    cache_bytes_per_token = 8

    def new_cache(self, num_blocks: int, block_size: int) -> torch.Tensor:
        return torch.full((num_blocks * block_size,), -1, dtype=torch.int64)

    def forward(self, batch: PackedBatch, cache: torch.Tensor) -> torch.Tensor:
        cache[batch.slots] = batch.positions * VOCAB + batch.token_ids
        sequence_of = {
            row: int(index) for index, first, count in batch.tiles.tolist() for row in range(first, first + count)
        }
        logits = torch.zeros(len(batch.sample_rows), VOCAB)
        for place, row in enumerate(batch.sample_rows.tolist()):
            history = self._read(cache, batch.block_tables[sequence_of[row]], int(batch.positions[row]))
            logits[place, next_token(history)] = 100.0
        return logits

    @staticmethod
    def _read(cache: torch.Tensor, table: torch.Tensor, last: int) -> list[int]:
        positions = torch.arange(last + 1)
        found = cache[table[positions // BLOCK] * BLOCK + positions % BLOCK]
        assert (found // VOCAB).tolist() == positions.tolist(), "a page holds other positions than it should"
        return list((found % VOCAB).tolist())


class CoreMachine(RuleBasedStateMachine):
    """Requests that share beginnings, in a cache too small for them."""

    def __init__(self) -> None:
        super().__init__()
        config = EngineConfig(
            block_size=BLOCK, kv_cache_memory_bytes=NUM_BLOCKS * BLOCK * 8, max_num_seqs=5, max_num_batched_tokens=21
        )
        model: Any = PageReader()
        self.core = EngineCore(model, config)
        assert self.core._pool.num_blocks == NUM_BLOCKS
        self.expected: dict[str, list[int]] = {}
        self.made: dict[str, list[int]] = {}
        self.unscored: dict[str, list[int]] = {}
        self.names = iter(range(10**6))

    @rule(
        stem=st.sampled_from(STEMS),
        rest=st.lists(st.integers(0, VOCAB - 1), max_size=9),
        max_tokens=st.integers(0, 30),
        before=st.integers(0, 4),
        is_scored=st.booleans(),
    )
    def add(self, stem: list[int], rest: list[int], max_tokens: int, before: int, is_scored: bool) -> None:
        name, prompt = str(next(self.names)), stem + rest
        max_tokens = max_tokens if is_scored else max(max_tokens, 1)
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, prompt_logprobs=0 if is_scored else None)
        expected = continuation(prompt, max_tokens)
        generated = expected[:before]
        self.core.add_request(name, prompt, params, generated=generated)
        if is_scored:
            self.unscored[name] = prompt
        self.expected[name], self.made[name] = expected, list(generated)

    @rule()
    def step(self) -> None:
        for one in self.core.step().outputs:
            self.made[one.request_id] += one.token_ids
            made, expected = self.made[one.request_id], self.expected[one.request_id]
            assert made == expected[: len(made)]
            assert (one.finish_reason is not None) == (len(made) == len(expected))
            self._check_scores(self.unscored.pop(one.request_id, None), one.prompt_logprobs)

    @precondition(lambda self: self.core._live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.core._live)))
        self.core.abort(name)
        del self.expected[name], self.made[name]
        self.unscored.pop(name, None)

    @precondition(lambda self: self.core._scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        running = self.core._scheduler.running
        self.core._scheduler._preempt(running[data.draw(st.integers(0, len(running) - 1))])

    @invariant()
    def every_page_has_the_holders_it_counts(self) -> None:
        pool = self.core._pool
        pool.check()
        held = Counter(block for sequence in self._sequences() for block in sequence.blocks)
        assert pool._holders == [held[block] for block in range(NUM_BLOCKS)]

    @invariant()
    def every_sequence_is_in_one_queue(self) -> None:
        assert Counter(map(id, self._sequences())) == Counter(map(id, self.core._live.values()))

    @invariant()
    def pages_cover_what_is_computed_and_waiting_ones_hold_none(self) -> None:
        for sequence in self._sequences():
            assert sequence.num_computed <= len(sequence.blocks) * BLOCK
            assert len(set(sequence.blocks)) == len(sequence.blocks)
        assert not any(sequence.blocks for sequence in self.core._scheduler.waiting)

    def teardown(self) -> None:
        for _ in range(5000):
            if not self.core.has_unfinished():
                break
            self.step()
        assert self.made == self.expected
        assert not self.unscored
        assert self.core._pool.num_free == NUM_BLOCKS

    @staticmethod
    def _check_scores(prompt: list[int] | None, scores: Any) -> None:
        """They come once, with what comes first, and the token that the model would have said is the likeliest."""
        assert (prompt is None) == (scores is None)
        for place, (score, *_) in enumerate(scores or (), 1):
            assert prompt is not None
            assert score.token_id == prompt[place]
            assert (score.logprob > -1.0) == (prompt[place] == next_token(prompt[:place]))
        assert prompt is None or len(scores) == len(prompt) - 1

    def _sequences(self) -> list[Sequence]:
        scheduler = self.core._scheduler
        return [*scheduler.running, *scheduler.waiting]


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
