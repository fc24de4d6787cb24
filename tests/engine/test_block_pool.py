from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from streamrunner.engine.block_pool import ROOT_HASH, BlockPool, block_hash


def test_a_name_depends_on_all_tokens_before() -> None:
    first, other = block_hash(ROOT_HASH, [1, 2]), block_hash(ROOT_HASH, [1, 3])
    assert block_hash(first, [5, 6]) != block_hash(other, [5, 6])
    assert block_hash(first, [5, 6]) == block_hash(block_hash(ROOT_HASH, [1, 2]), [5, 6])


def test_pages_run_out_whole_or_not_at_all() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.num_free == 4
    assert len(pool.allocate(4) or []) == 4
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_a_freed_page_is_found_by_its_name_until_it_is_needed() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1) or []
    pool.register(block, b"name")
    pool.free([block])
    assert pool.find(b"name") == block
    pool.free([block])
    assert sorted(pool.allocate(2) or []) == [0, 1]
    assert pool.find(b"name") is None


def test_the_least_recently_used_page_goes_first_and_a_prompts_beginning_last() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3) or []
    for block in blocks:
        pool.register(block, bytes([block]))
    pool.free(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert pool.find(bytes([blocks[0]])) == blocks[0]


class PoolMachine(RuleBasedStateMachine):
    """Any order of calls: no page lost, none held twice by mistake, no name that leads astray."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.holders: dict[int, int] = {}

    @rule(target=held, count=st.integers(0, 5))
    def allocate(self, count: int) -> tuple[int, ...]:
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > 8 - sum(1 for n in self.holders.values() if n))
        for block in blocks or []:
            assert not self.holders.get(block)
            self.holders[block] = 1
        return tuple(blocks or ())

    @rule(blocks=held, name=st.sampled_from([b"a", b"b", b"c"]))
    def register(self, blocks: tuple[int, ...], name: bytes) -> None:
        if blocks and self.holders[blocks[0]]:
            self.pool.register(blocks[0], name)

    @rule(target=held, name=st.sampled_from([b"a", b"b", b"c"]))
    def find(self, name: bytes) -> tuple[int, ...]:
        block = self.pool.find(name)
        if block is None:
            return ()
        self.holders[block] = self.holders.get(block, 0) + 1
        return (block,)

    @rule(blocks=consumes(held))
    def free(self, blocks: tuple[int, ...]) -> None:
        self.pool.free(blocks)
        for block in blocks:
            self.holders[block] -= 1

    @invariant()
    def adds_up(self) -> None:
        self.pool.check()
        assert self.pool.num_free == 8 - sum(1 for holders in self.holders.values() if holders)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
