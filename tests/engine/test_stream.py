"""Streams: results and tokens while they are made, whoever reads them, however slowly, and whoever stops."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine import LLM, EngineError, OutputStream, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

SHORT = SamplingParams(max_tokens=6, ignore_eos=True, seed=1)
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True, seed=1)
PROMPTS = [f"prompt {number}" for number in range(10)]


def is_idle(llm: LLM) -> bool:
    pool = llm._core._pool
    return not llm._core._live and pool.num_free == pool.num_blocks


def joined(items: Iterable[RequestOutput]) -> dict[int, tuple[str, list[int]]]:
    """Deltas put together, by prompt; and they are the cumulative text at every item."""
    found: dict[int, tuple[str, list[int]]] = defaultdict(lambda: ("", []))
    for item in items:
        [choice] = item.outputs
        text, token_ids = found[item.index]
        found[item.index] = (text + choice.delta_text, token_ids + choice.delta_token_ids)
        assert found[item.index] == (choice.text, choice.token_ids)
    return dict(found)


def whole(outputs: Iterable[RequestOutput]) -> dict[int, tuple[str, list[int]]]:
    return {output.index: (output.outputs[0].text, output.outputs[0].token_ids) for output in outputs}


class Counted:
    """Prompts without end, and how many of them were taken."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.taken += 1
        return f"prompt {self.taken}"


def test_deltas_add_up_to_what_generate_gives(llm: LLM) -> None:
    expected = whole(llm.generate(PROMPTS, GREEDY))
    items = list(llm.generate_stream(PROMPTS, GREEDY))
    assert joined(items) == expected
    assert len(items) > len(PROMPTS)
    assert {item.index for item in items if item.finished} == set(range(10))


def test_an_item_shows_one_token_when_the_reader_is_quick(llm: LLM) -> None:
    stream = llm.generate_stream("x", GREEDY)
    first = next(stream)
    assert first.outputs[0].delta_token_ids == first.outputs[0].token_ids
    assert not first.finished


@pytest.mark.parametrize("every_n", [1, 4, 100, None])
def test_every_n_says_how_often(llm: LLM, every_n: int | None) -> None:
    items = list(llm.generate_stream("x", GREEDY, every_n=every_n))
    *middle, last = items
    assert all(len(item.outputs[0].delta_token_ids) >= (every_n or 30) for item in middle)
    assert len(middle) <= (0 if every_n in (100, None) else 29)
    assert last.finished
    assert len(last.outputs[0].token_ids) == 30


def test_an_item_that_was_handed_out_does_not_change(llm: LLM) -> None:
    items = list(llm.generate_stream("x", GREEDY))
    lengths = [len(item.outputs[0].token_ids) for item in items]
    assert lengths == sorted(set(lengths))
    assert not any(item.finished for item in items[:-1])


def test_ordered_gives_all_of_a_prompt_before_the_next_one(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in (40, 1, 20, 2, 5, 3, 1, 1, 9, 1)]
    items = list(llm.generate_stream(PROMPTS, params, ordered=True))
    order = [item.index for item in items]
    assert order == sorted(order)
    assert joined(items) == whole(llm.generate(PROMPTS, params))


def test_results_come_in_the_order_of_completion_without_it(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (60, 2, 2)]
    finished = [item.index for item in llm.generate_stream("abc", params[0], every_n=None)]
    assert finished == [0]
    finished = [item.index for item in llm.generate_stream(["a", "b", "c"], params, every_n=None)]
    assert finished[-1] == 0
    assert [item.index for item in llm.generate_stream(["a", "b", "c"], params, every_n=None, ordered=True)] == [
        0,
        1,
        2,
    ]


def test_a_slow_reader_gets_merged_deltas_and_the_engine_does_not_wait(llm: LLM, eventually: Any) -> None:
    expected = whole(llm.generate(PROMPTS[:4], GREEDY))
    before = llm.get_metrics().num_generation_tokens
    stream = llm.generate_stream(PROMPTS[:4], GREEDY)
    # Nobody reads, and yet everything gets done.
    eventually(lambda: llm.get_metrics().num_generation_tokens >= before + 4 * 30)
    items = list(stream)
    assert [item.finished for item in items] == [True] * 4
    assert joined(items) == expected


def test_prompts_are_read_no_further_than_the_engine_needs(llm: LLM) -> None:
    prompts = Counted()
    stream = llm.generate_stream(prompts, SHORT, every_n=None)
    for read in range(1, 40):
        next(stream)
        # Four run, one and sixteen wait, one may be in the feeder's hands.
        assert prompts.taken <= read + 4 + 1 + 16 + 1 + len(stream._call.live)
    stream.close()
    taken = prompts.taken
    assert is_idle_soon(llm)
    assert prompts.taken - taken <= 1


def is_idle_soon(llm: LLM) -> bool:
    llm.generate("x", SHORT)  # behind all aborts
    return is_idle(llm)


def test_unread_results_are_bounded(llm: LLM, eventually: Any) -> None:
    prompts = Counted()
    with llm.generate_stream(prompts, SHORT, max_unread=10) as stream:
        eventually(lambda: stream._call._num_unread >= 10 and is_idle(llm))
        assert prompts.taken <= 10 + 4 + 1 + 16 + 1
        before = prompts.taken
        for _ in range(30):
            next(stream)
        eventually(lambda: prompts.taken > before)


def test_work_starts_before_the_reader_does_and_before_the_last_prompt_is_there(llm: LLM, eventually: Any) -> None:
    gate = threading.Event()

    def prompts() -> Iterator[str]:
        yield "first"
        gate.wait(10)
        yield "second"

    before = llm.get_metrics().num_generation_tokens
    stream = llm.generate_stream(prompts(), SHORT, every_n=None)
    eventually(lambda: llm.get_metrics().num_generation_tokens >= before + 6)
    assert next(stream).prompt == "first"
    gate.set()
    assert [item.prompt for item in stream] == ["second"]


def leave_by_close(stream: OutputStream) -> None:
    next(stream)
    stream.close()
    assert list(stream) == []


def leave_by_break(stream: OutputStream) -> None:
    for _ in stream:
        break


def leave_by_error(stream: OutputStream) -> None:
    with pytest.raises(ZeroDivisionError):
        read_and_fail(iter([stream]))


def read_and_fail(streams: Iterator[OutputStream]) -> None:
    for _ in next(streams):
        raise ZeroDivisionError


def leave_by_with(stream: OutputStream) -> None:
    with pytest.raises(ZeroDivisionError), stream:
        raise ZeroDivisionError


LEAVES = [leave_by_close, leave_by_break, leave_by_error, leave_by_with]


@pytest.mark.parametrize("leave", LEAVES, ids=lambda leave: leave.__name__)
def test_whoever_leaves_frees_everything(llm: LLM, leave: Callable[[OutputStream], None], eventually: Any) -> None:
    stream = [llm.generate_stream(Counted(), ENDLESS)]
    leave(stream.pop())
    gc.collect()
    eventually(lambda: is_idle(llm))
    eventually(lambda: not llm._dispatcher._calls)
    assert not llm._dispatcher._owners
    assert not llm._dispatcher._processor._texts
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "engine-feed"])
    assert len(llm.generate(PROMPTS, SHORT)) == 10


def test_a_stream_that_nobody_read_is_freed_too(llm: LLM, eventually: Any) -> None:
    llm.generate_stream(Counted(), ENDLESS)
    gc.collect()
    eventually(lambda: is_idle(llm) and not llm._dispatcher._calls)


def test_closing_does_not_wait_for_an_iterator_that_hangs(llm: LLM) -> None:
    gate = threading.Event()

    def prompts() -> Iterator[str]:
        yield "first"
        gate.wait(30)
        yield "never"

    with llm.generate_stream(prompts(), SHORT, every_n=None) as stream:
        assert next(stream).prompt == "first"
    assert is_idle_soon(llm)
    gate.set()


def test_a_stream_can_be_closed_from_another_thread(llm: LLM) -> None:
    stream = llm.generate_stream("x", ENDLESS)
    next(stream)
    threading.Timer(0.05, stream.close).start()
    assert all(not item.finished for item in stream)


def test_two_readers_share_a_stream_and_both_come_to_its_end(llm: LLM) -> None:
    stream = llm.generate_stream(PROMPTS, SHORT, every_n=None)
    found: list[int] = []
    readers = [threading.Thread(target=lambda: found.extend(item.index for item in stream)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=20)
    assert not any(reader.is_alive() for reader in readers)
    assert sorted(found) == list(range(10))


def test_an_aborted_request_ends_with_what_it_has(llm: LLM) -> None:
    ended = {}
    for item in llm.generate_stream(["a", "b"], [ENDLESS, GREEDY]):
        if item.index == 0 and len(item.outputs[0].token_ids) >= 3:
            llm.abort(item.request_id)
        if item.finished:
            ended[item.index] = item.outputs[0]
    assert ended[0].finish_reason == "abort"
    assert 3 <= len(ended[0].token_ids) < 200
    assert ended[1].finish_reason == "length"
    llm.abort(["never was", "0"])
    assert is_idle_soon(llm)


def test_choices_of_a_prompt_stream_together(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, n=3, ignore_eos=True, seed=4)
    found = dict.fromkeys(range(3), "")
    for item in llm.generate_stream("x", params):
        assert [choice.index for choice in item.outputs] == [0, 1, 2]
        for choice in item.outputs:
            found[choice.index] += choice.delta_text
    [output] = llm.generate("x", params)
    assert list(found.values()) == [choice.text for choice in output.outputs]


@pytest.mark.parametrize(("option", "value"), [("every_n", 0), ("max_unread", 0)])
def test_a_bad_option_is_refused_at_once(llm: LLM, option: str, value: int) -> None:
    with pytest.raises(EngineError) as caught:
        llm.generate_stream("x", **{option: value})  # type: ignore[arg-type]
    assert caught.value.param == option


# ── async ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_async_twin_gives_the_same(llm: LLM) -> None:
    async def read() -> list[RequestOutput]:
        return [item async for item in llm.agenerate_stream(PROMPTS, GREEDY)]

    assert joined(asyncio.run(read())) == whole(llm.generate(PROMPTS, GREEDY))


def test_many_async_readers_share_the_engine_and_the_event_loop_goes_on(llm: LLM) -> None:
    ticks = itertools.count()

    async def tick() -> None:
        while True:
            next(ticks)
            await asyncio.sleep(0)

    async def read(prompt: str) -> str:
        return [item.outputs[0].text async for item in llm.agenerate_stream(prompt, GREEDY)][-1]

    async def main() -> list[str]:
        ticker = asyncio.create_task(tick())
        found = await asyncio.gather(*map(read, PROMPTS))
        ticker.cancel()
        return found

    expected = [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY)]
    assert asyncio.run(main()) == expected
    assert next(ticks) > 10


def test_a_cancelled_async_reader_frees_everything(llm: LLM, eventually: Any) -> None:
    async def read() -> None:
        async with llm.agenerate_stream(Counted(), ENDLESS, every_n=None) as stream:
            async for _ in stream:
                pass

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(read(), timeout=0.2)

    asyncio.run(main())
    eventually(lambda: is_idle(llm) and not llm._dispatcher._calls)


def test_an_event_loop_that_ends_first_frees_everything(llm: LLM, eventually: Any) -> None:
    streams = []

    async def main() -> None:
        streams.append(llm.agenerate_stream(Counted(), ENDLESS))
        await anext(streams[0])

    asyncio.run(main())
    eventually(lambda: is_idle(llm) and not llm._dispatcher._calls)


def test_async_errors_come_where_they_happen(llm: LLM) -> None:
    async def read() -> None:
        async for _ in llm.agenerate_stream(["a", "b"], iter([SHORT])):
            pass

    with pytest.raises(EngineError) as caught:
        asyncio.run(read())
    assert caught.value.code == "params_mismatch"


def test_async_prompts_are_read_as_they_come_and_no_further_than_needed(llm: LLM) -> None:
    given = 0

    async def prompts() -> AsyncIterator[str]:
        nonlocal given
        while True:
            await asyncio.sleep(0)
            given += 1
            yield f"prompt {given}"

    async def read() -> list[str | None]:
        async with llm.agenerate_stream(prompts(), SHORT, every_n=None, max_unread=4) as stream:
            return sorted([(await anext(stream)).prompt or "" for _ in range(6)])

    assert asyncio.run(read()) == [f"prompt {number}" for number in range(1, 7)]
    assert given < 50


def test_an_async_iterator_that_fails_is_heard_after_what_it_gave(llm: LLM) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "a"
        raise OSError("the queue is gone")

    async def read() -> None:
        stream = llm.agenerate_stream(prompts(), SHORT, every_n=None)
        assert (await anext(stream)).prompt == "a"
        with pytest.raises(OSError, match="the queue is gone"):
            await anext(stream)

    asyncio.run(read())


def test_async_prompts_whose_event_loop_ends_hold_up_nobody(llm: LLM, eventually: Any) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(3600)

    streams = []

    async def main() -> None:
        streams.append(llm.agenerate_stream(prompts(), SHORT, every_n=None))
        await anext(streams[0])

    asyncio.run(main())
    streams.clear()
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "engine-feed"])
