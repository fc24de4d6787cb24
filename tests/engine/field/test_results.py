"""Order, endings and aborts that went wrong elsewhere, as reported."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine import LLM, EngineError, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def test_prompts_of_mixed_length_come_back_in_their_order_with_their_index(llm: LLM) -> None:
    """vllm-project/vllm#394, #14187, hiyouga/LlamaFactory#5597: another order, and nothing to join on."""
    prompts = ["x" * (1 + 37 * number % 90) for number in range(30)]
    outputs = llm.generate(prompts, GREEDY)
    assert [(output.index, output.prompt) for output in outputs] == list(enumerate(prompts))
    streamed = {output.index: output.prompt for output in llm.generate_stream(prompts, GREEDY, every_n=None)}
    assert streamed == dict(enumerate(prompts))


def test_a_second_call_is_as_good_as_the_first(llm: LLM) -> None:
    """huggingface/transformers#45943: the second batch lost its results."""
    assert len({str([output.outputs for output in llm.generate(["a", "b"], GREEDY)]) for _ in range(3)}) == 1


def test_readers_of_different_calls_do_not_starve_each_other(llm: LLM) -> None:
    """huggingface/transformers#42943: interleaved results in one queue; a reader that never ended."""
    found: queue.Queue[list[int]] = queue.Queue()

    def read() -> None:
        found.put([item.index for item in llm.generate_stream(["a", "b", "c"], GREEDY, every_n=None)])

    threads = [threading.Thread(target=read) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert [sorted(found.get(timeout=30)) for _ in threads] == [[0, 1, 2]] * 5


def test_an_engine_may_be_idle_before_and_between_requests(new_llm: Callable[..., LLM], eventually: Any) -> None:
    """huggingface/transformers#48303: started before the first request, it crashed."""
    llm = new_llm()
    for _ in range(2):
        threading.Event().wait(0.3)
        assert llm.generate("x", GREEDY)[0].error is None


@pytest.mark.parametrize("fault", [MemoryError("out of memory"), RuntimeError("bad kernel")])
def test_a_fault_in_a_step_ends_every_reader_at_once(
    new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """huggingface/transformers#48301, vllm-project/vllm#3559, sgl-project/sglang#435: hangs, at 98 or at 100 %."""
    llm = new_llm()
    streams = [llm.generate_stream(["a", "b"], ENDLESS) for _ in range(2)]
    next(streams[0])

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(llm._core, "step", fail)
    for stream in streams:
        with pytest.raises(EngineError, match=str(fault)) as caught:
            list(stream)
        assert caught.value.code == "engine_died"


def test_an_id_is_never_used_twice(llm: LLM) -> None:
    """vllm-project/vllm#23697: an abort reached the next request of that name as well."""
    seen: list[str] = []
    for _ in range(3):
        with llm.generate_stream("x", ENDLESS) as stream:
            seen.append(next(stream).request_id)
            llm.abort(seen[-1])
            assert [item.outputs[0].finish_reason for item in stream][-1] == "abort"
    assert len(set(seen)) == 3


def test_an_abort_may_cross_the_end_of_its_request(llm: LLM) -> None:
    """vllm-project/vllm#25067: a KeyError killed the engine."""
    for item in llm.generate_stream(["a", "b", "c"] * 5, GREEDY):
        if item.finished or len(item.outputs[0].token_ids) >= 7:
            llm.abort(item.request_id)
    assert llm.generate("x", GREEDY)[0].error is None
