"""Many readers at once, each with habits of its own, on an engine that is short of pages."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

from streamrunner.engine import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = "a prompt that fills more than one page of the cache, number "
PROMPTS = [TEXT + str(number) for number in range(12)] + [str(number) for number in range(8)]


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, n=n)


class Reader:
    """Opens streams, reads, dawdles, aborts and leaves at random; what it reads has to be right at every item."""

    def __init__(self, llm: LLM, expected: dict[str, list[int]], seed: int) -> None:
        self._llm = llm
        self._expected = expected
        self._random = random.Random(seed)
        self.fault: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            for _ in range(6):
                self._read_one()
        except BaseException as fault:  # noqa: BLE001 - for the test to raise
            self.fault = fault

    def _read_one(self) -> None:
        pick = self._random
        prompts = [pick.choice(PROMPTS) for _ in range(pick.randint(1, 10))]
        params = [greedy(pick.choice([1, 5, 40]), pick.choice([1, 1, 3])) for _ in prompts]
        given: Any = iter(prompts) if pick.random() < 0.5 else prompts
        leave_after = pick.randint(1, 60) if pick.random() < 0.4 else None
        options: dict[str, Any] = {
            "ordered": pick.random() < 0.5,
            "every_n": pick.choice([1, 3, None]),
            "max_unread": pick.choice([1, 3, 100]),
        }
        made: dict[tuple[int, int], list[int]] = {}
        for count, item in enumerate(self._llm.generate_stream(given, params, **options), 1):
            if count == leave_after:
                return
            if pick.random() < 0.02:
                self._llm.abort(item.request_id)
            for choice in item.outputs:
                so_far = made.setdefault((item.index, choice.index), [])
                so_far += choice.delta_token_ids
                assert so_far == choice.token_ids == self._expected[prompts[item.index]][: len(so_far)]
                if choice.finish_reason == "length":
                    assert len(so_far) == params[item.index].max_tokens
        assert {index for index, _ in made} == set(range(len(prompts)))


def test_nobody_gets_anything_wrong_and_nothing_is_left(new_llm: Callable[..., LLM], eventually: Any) -> None:
    llm = new_llm(kv_cache_memory_bytes=12 * 32 * 512, max_num_seqs=6)
    assert llm._core._pool.num_blocks <= 12
    expected = {output.prompt or "": output.outputs[0].token_ids for output in llm.generate(PROMPTS, greedy(40))}
    readers = [Reader(llm, expected, seed) for seed in range(6)]
    for reader in readers:
        reader.thread.start()
    for reader in readers:
        reader.thread.join(timeout=90)
    assert [reader.fault for reader in readers] == [None] * 6
    assert not any(reader.thread.is_alive() for reader in readers)
    assert llm.get_metrics().num_preemptions > 0
    eventually(lambda: not llm._dispatcher._calls and not llm._dispatcher._owners and not llm._core._live)
    assert llm._core._pool.num_free == llm._core._pool.num_blocks
    llm._core._pool.check()
