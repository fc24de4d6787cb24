"""The engine's thread, on a core that makes tokens of nothing."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine.errors import EngineError
from streamrunner.engine.loop import EngineLoop, EngineRequest, LoopEnd
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.step import RequestStep, StepOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARAMS = SamplingParams(max_tokens=3)


class FakeCore:
    """Each step gives every live request its next number, up to its max_tokens; `fault` is raised by the next step."""

    def __init__(self) -> None:
        self.live: dict[str, tuple[SamplingParams, int]] = {}
        self.added: list[tuple[Any, ...]] = []
        self.aborted: list[str] = []
        self.num_steps = 0
        self.num_asked = 0
        self.fault: BaseException | None = None
        self.threads: set[str] = set()

    def add_request(
        self, request_id: str, prompt: Any, params: SamplingParams, *, choice: int, generated: Any, **_options: Any
    ) -> None:
        self.threads.add(threading.current_thread().name)
        self.added.append((request_id, prompt, params, choice, generated))
        if not prompt:
            raise EngineError("empty_prompt", "no tokens")
        self.live[request_id] = (params, len(generated))

    def abort(self, request_id: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.aborted.append(request_id)
        self.live.pop(request_id, None)

    def has_unfinished(self) -> bool:
        self.num_asked += 1
        return bool(self.live)

    def step(self) -> StepOutput:
        self.threads.add(threading.current_thread().name)
        if self.fault is not None:
            raise self.fault
        self.num_steps += 1
        steps = []
        for name, (params, made) in list(self.live.items()):
            done = params.max_tokens is not None and made + 1 >= params.max_tokens
            steps.append(RequestStep(name, (made,), None, "length" if done else None, None, None))
            if done:
                del self.live[name]
            else:
                self.live[name] = (params, made + 1)
        return StepOutput(tuple(steps), len(steps), 0, len(steps), 0, 0, 0.0, 0, 0.1)


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


@pytest.fixture
def loop(core: FakeCore) -> Iterator[EngineLoop]:
    made = EngineLoop(core, max_queued_steps=4)  # type: ignore[arg-type]
    made.start()
    yield made
    made.close()


def request(name: str, *, prompt: list[int] | None = None, **options: Any) -> EngineRequest:
    return EngineRequest(name, [1, 2] if prompt is None else prompt, options.pop("params", PARAMS), **options)


def read(loop: EngineLoop, until: Callable[[list[RequestStep]], bool]) -> list[RequestStep]:
    found: list[RequestStep] = []
    while not until(found):
        item = loop.outputs.get(timeout=5)
        assert isinstance(item, StepOutput), item
        found += item.outputs
    return found


def ended(*names: str) -> Callable[[list[RequestStep]], bool]:
    return lambda steps: {*names} <= {one.request_id for one in steps if one.finish_reason}


def last(loop: EngineLoop) -> LoopEnd:
    while True:
        item = loop.outputs.get(timeout=5)
        if isinstance(item, LoopEnd):
            return item


def test_a_request_reaches_the_core_whole_and_its_tokens_come_in_order(core: FakeCore, loop: EngineLoop) -> None:
    loop.add(request("a", choice=2, generated=(0,)))
    steps = read(loop, ended("a"))
    assert core.added == [("a", [1, 2], PARAMS, 2, (0,))]
    assert [one.token_ids for one in steps] == [(1,), (2,)]


def test_requests_from_many_threads_all_finish_on_one_engine_thread(core: FakeCore, loop: EngineLoop) -> None:
    names = [f"r{i}" for i in range(20)]
    threads = [threading.Thread(target=loop.add, args=(request(name),)) for name in names]
    for thread in threads:
        thread.start()
    steps = read(loop, ended(*names))
    assert len(steps) == 60
    assert core.threads == {"engine"}


def test_a_refused_request_comes_out_as_an_error_and_the_others_go_on(loop: EngineLoop) -> None:
    loop.add(request("bad", prompt=[]))
    loop.add(request("good"))
    steps = read(loop, ended("bad", "good"))
    [refused] = [one for one in steps if one.request_id == "bad"]
    assert refused.finish_reason == "error"
    assert refused.error is not None
    assert refused.error.code == "empty_prompt"
    assert sum(one.request_id == "good" for one in steps) == 3


def test_an_aborted_request_makes_no_more_tokens(core: FakeCore, loop: EngineLoop, eventually: Any) -> None:
    loop.add(request("endless", params=SamplingParams(max_tokens=None)))
    read(loop, lambda steps: len(steps) >= 2)
    loop.abort("endless")
    loop.abort("unknown")
    loop.add(request("other"))
    read(loop, ended("other"))
    assert core.aborted == ["endless", "unknown"]
    assert not core.live


def test_a_reader_that_is_slow_makes_the_engine_wait_and_the_wait_is_counted(
    core: FakeCore, loop: EngineLoop, eventually: Any
) -> None:
    loop.add(request("endless", params=SamplingParams(max_tokens=None)))
    eventually(loop.outputs.full)
    eventually(lambda: core.num_steps == 5)  # four in the queue, one in the engine's hands
    first = loop.outputs.get(timeout=5)
    assert isinstance(first, StepOutput)
    read(loop, lambda steps: len(steps) >= 10)
    assert loop.queue_wait_ms > 0
    tokens = [one.token_ids[0] for one in (*first.outputs, *read(loop, lambda steps: len(steps) >= 3))]
    assert tokens[0] == 0
    assert tokens[1:] == [11, 12, 13]  # nothing was dropped while it waited


def test_an_idle_engine_sleeps(core: FakeCore, loop: EngineLoop) -> None:
    loop.add(request("a"))
    read(loop, ended("a"))
    with pytest.raises(queue.Empty):
        loop.outputs.get(timeout=0.1)
    asked = core.num_asked
    with pytest.raises(queue.Empty):
        loop.outputs.get(timeout=0.1)
    assert core.num_asked == asked
    loop.add(request("b"))
    assert read(loop, ended("b"))


def test_what_the_engine_dies_of_is_the_last_thing_that_comes_out(core: FakeCore, loop: EngineLoop) -> None:
    loop.add(request("endless", params=SamplingParams(max_tokens=None)))
    read(loop, lambda steps: len(steps) >= 1)
    core.fault = MemoryError("no pages")
    assert last(loop).error is core.fault
    loop.add(request("late"))
    loop.close()


def test_a_closed_engine_says_so_and_can_be_closed_again(loop: EngineLoop) -> None:
    loop.close()
    assert last(loop).error is None
    loop.close()


def test_closing_never_waits_for_a_reader_that_is_gone(loop: EngineLoop, eventually: Any) -> None:
    loop.add(request("endless", params=SamplingParams(max_tokens=None)))
    eventually(loop.outputs.full)
    closing = threading.Thread(target=loop.close)
    closing.start()
    closing.join(timeout=5)
    assert not closing.is_alive()
    assert isinstance(loop.outputs.get_nowait(), StepOutput)


def test_a_loop_that_was_never_started_can_be_closed(core: FakeCore) -> None:
    EngineLoop(core).close()  # type: ignore[arg-type]
