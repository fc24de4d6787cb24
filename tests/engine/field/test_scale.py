"""Long lists: when work begins, and what it costs per prompt. Counted, not timed."""

from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING

from streamrunner.engine import LLM, SamplingParams
from streamrunner.engine.block_pool import BlockPool
from streamrunner.engine.live_request import LiveRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ONE = SamplingParams(temperature=0.0, max_tokens=1)


def counted(counter: itertools.count[int], size: int) -> Iterator[str]:
    for number in range(size):
        next(counter)
        yield f"prompt {number}"


def test_the_first_result_of_a_million_prompts_comes_at_once(llm: LLM) -> None:
    """modelscope/ms-swift#6287, vllm-project/vllm#1315, #13259: a long silence, then all of it."""
    counter = itertools.count()
    with llm.generate_stream(counted(counter, 10**6), ONE, every_n=None) as stream:
        assert next(stream).finished
        # What runs, what waits, and what may be made before the reader is here: never the million.
        assert next(counter) < 5000


def test_live_requests_do_not_pile_up(llm: LLM) -> None:
    """vllm-project/vllm#9190, #52505: memory grew until the process was killed."""
    most = 0
    for done, _ in enumerate(llm.generate_stream(counted(itertools.count(), 2000), ONE, every_n=None, max_unread=50)):
        if done % 500 == 0:
            most = max(most, sum(type(one) is LiveRequest for one in gc.get_objects()))
    assert most <= 50 + 4 + 1 + 16 + 1


def test_looking_for_a_known_beginning_costs_the_prompts_pages_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """EleutherAI/lm-evaluation-harness#2964: the look-up grew with what was cached. Here: by hash, a page at a time."""
    num_looked_up = 0
    find = BlockPool.find

    def counting_find(pool: BlockPool, name: bytes) -> int | None:
        nonlocal num_looked_up
        num_looked_up += 1
        return find(pool, name)

    monkeypatch.setattr(BlockPool, "find", counting_find)
    prompts = ["the same beginning of every prompt, longer than a page: " + str(number) for number in range(40)]
    llm.generate(prompts, ONE)
    pages = max(map(len, prompts)) // 32 + 1
    assert 0 < num_looked_up <= 40 * pages
    num_looked_up = 0
    llm.generate(prompts, ONE)
    assert 0 < num_looked_up <= 40 * pages
