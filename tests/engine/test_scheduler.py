"""Who computes what in a step, without a model: sampled tokens are appended by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrunner.engine.block_pool import BlockPool
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.scheduler import Chunk, Scheduler
from streamrunner.engine.sequence import Sequence

BLOCK = 4


class Rig:
    """A scheduler and its pool; `step` schedules, then gives every sequence that may sample its next token."""

    def __init__(self, num_blocks: int = 100, *, seqs: int = 8, budget: int = 64, caching: bool = False) -> None:
        self.pool = BlockPool(num_blocks)
        self.budget, self.seqs = budget, seqs
        self.scheduler = Scheduler(
            self.pool, block_size=BLOCK, max_num_seqs=seqs, max_num_batched_tokens=budget, prefix_caching=caching
        )
        self.finished: list[str] = []

    def add(self, name: str, prompt: int | list[int], max_tokens: int = 3) -> Sequence:
        tokens = [ord(name[0]) * 100 + i for i in range(prompt)] if isinstance(prompt, int) else prompt
        one = Sequence(name, list(tokens), len(tokens), SamplingParams(), 7, 0, max_tokens)
        self.scheduler.add(one)
        return one

    def step(self) -> list[tuple[str, int, int]]:
        chunks = self.scheduler.schedule()
        self._check(chunks)
        for chunk in chunks:
            if chunk.samples:
                chunk.sequence.token_ids.append(5)
                if chunk.sequence.num_output >= chunk.sequence.max_tokens:
                    self.scheduler.remove(chunk.sequence)
                    self.finished.append(chunk.sequence.request_id)
        return [(chunk.sequence.request_id, chunk.start, chunk.num_tokens) for chunk in chunks]

    def run(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not (self.scheduler.running or self.scheduler.waiting):
                return
            assert self.step(), "work waits, but nothing is scheduled"
        raise AssertionError("it never ends")

    def _check(self, chunks: list[Chunk]) -> None:
        self.pool.check()
        assert sum(chunk.num_tokens for chunk in chunks) <= self.budget
        assert len(self.scheduler.running) <= self.seqs
        assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            assert chunk.num_tokens >= 1
            assert chunk.sequence in self.scheduler.running
            assert len(chunk.sequence.blocks) * BLOCK >= chunk.sequence.num_computed


def test_a_prompt_is_computed_once_and_then_one_token_a_step() -> None:
    rig = Rig()
    rig.add("a", 6)
    assert [rig.step(), rig.step(), rig.step()] == [[("a", 0, 6)], [("a", 6, 1)], [("a", 7, 1)]]
    assert rig.finished == ["a"]
    assert rig.step() == []
    assert rig.pool.num_free == 100


def test_running_sequences_come_first_and_a_long_prompt_takes_what_is_left_in_chunks() -> None:
    rig = Rig(budget=10)
    rig.add("a", 4)
    rig.step()
    rig.add("long", 25)
    assert rig.step() == [("a", 4, 1), ("long", 0, 9)]
    assert rig.step() == [("a", 5, 1), ("long", 9, 9)]
    assert rig.step() == [("long", 18, 7)]


def test_sequences_are_admitted_in_the_order_they_came_up_to_the_limit() -> None:
    rig = Rig(seqs=2)
    for name in "abc":
        rig.add(name, 4)
    assert [name for name, _, _ in rig.step()] == ["a", "b"]
    rig.run()
    assert rig.finished == ["a", "b", "c"]


def test_when_pages_run_out_the_youngest_waits_and_is_computed_again() -> None:
    rig = Rig(num_blocks=4)
    rig.add("old", 8, max_tokens=6)
    young = rig.add("young", 8, max_tokens=6)
    rig.step()
    # Both want a third page; there is none.
    assert rig.step() == [("old", 8, 1)]
    assert (rig.scheduler.num_preemptions, young.blocks, young.num_computed) == (1, [], 0)
    assert young.token_ids[8:] == [5]  # what it had generated is kept
    rig.run()
    assert rig.finished == ["old", "young"]
    assert rig.pool.num_free == 4


def test_a_step_that_preempts_admits_nobody() -> None:
    rig = Rig(num_blocks=4)
    rig.add("old", 8, max_tokens=6)
    rig.add("young", 8, max_tokens=6)
    rig.step()
    rig.add("new", 1)
    assert rig.step() == [("old", 8, 1)]
    assert [one.request_id for one in rig.scheduler.waiting] == ["young", "new"]


def test_a_prefix_that_was_computed_is_not_computed_again() -> None:
    rig = Rig(caching=True)
    prompt = list(range(13))
    rig.add("a", prompt)
    rig.run()
    again = rig.add("b", prompt)
    assert rig.step() == [("b", 12, 1)]
    assert again.num_cached == 12
    other = rig.add("c", [*prompt[:8], 99, 98, 97, 96, 95])
    assert ("c", 8, 5) in rig.step()
    assert other.num_cached == 8


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    rig = Rig(caching=True)
    prompt = list(range(8))
    rig.add("a", prompt)
    rig.run()
    rig.add("b", prompt)
    assert rig.step() == [("b", 4, 4)]


def test_choices_of_one_prompt_compute_it_once() -> None:
    rig = Rig(caching=True)
    prompt = list(range(17))
    for name in ("0", "1", "2"):
        rig.add(name, prompt)
    assert rig.step() == [("0", 0, 17), ("1", 16, 1), ("2", 16, 1)]


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_sequence_that_is_removed_gives_its_pages_back(has_begun: bool) -> None:
    rig = Rig()
    one = rig.add("a", 20)
    if has_begun:
        rig.step()
        assert rig.pool.num_free < 100
    rig.scheduler.remove(one)
    assert rig.pool.num_free == 100
    assert rig.step() == []


_JOBS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12), st.booleans()), min_size=1, max_size=12)


@given(_JOBS, st.integers(8, 20), st.integers(1, 5), st.integers(5, 30), st.booleans())
def test_any_load_is_done_to_the_last_token_in_any_memory(
    jobs: list[tuple[int, int, bool]], num_blocks: int, seqs: int, budget: int, caching: bool
) -> None:
    rig = Rig(num_blocks, seqs=seqs, budget=budget, caching=caching)
    made: list[Any] = []
    for number, (prompt, max_tokens, shared) in enumerate(jobs):
        made.append(rig.add(str(number), list(range(prompt)) if shared else prompt, max_tokens))
        rig.step()
    rig.run()
    assert sorted(rig.finished) == sorted(str(number) for number in range(len(jobs)))
    assert all(one.num_output == one.max_tokens for one in made)
    assert rig.pool.num_free == num_blocks
