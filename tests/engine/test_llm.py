"""`LLM`: what a vLLM user finds, and what a call gives back whatever goes wrong in it."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from streamrunner.engine import LLM, EngineError, RequestOutput, SamplingParams
from streamrunner.engine.config import EngineConfig
from streamrunner.engine.core import EngineCore
from streamrunner.engine.seed import request_seed
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHORT = SamplingParams(max_tokens=6, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
PROMPTS = ["one", "a second one", "third", "and the fourth of them", "5", "six six six"]


def texts(outputs: list[RequestOutput]) -> list[list[str]]:
    return [[choice.text for choice in output.outputs] for output in outputs]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def is_idle(llm: LLM) -> bool:
    """Nothing lives in the engine, and every page is free."""
    pool = llm._core._pool
    return not llm._core._live and pool.num_free == pool.num_blocks


# ── what comes back ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_come_in_the_order_of_the_prompts_one_for_each(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (20, 1, 13, 2, 5, 3)]
    outputs = llm.generate(PROMPTS, params)
    assert [output.prompt for output in outputs] == PROMPTS
    assert [output.index for output in outputs] == list(range(6))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [20, 1, 13, 2, 5, 3]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    assert all(output.finished and output.outputs[0].finished() for output in outputs)
    assert len({output.request_id for output in outputs}) == 6


def test_greedy_tokens_and_logprobs_are_those_of_transformers(llm: LLM, tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
    for output in llm.generate(PROMPTS, params):
        [choice] = output.outputs
        with torch.inference_mode():
            ids = torch.tensor([output.prompt_token_ids + choice.token_ids])
            expected = reference(ids).logits[0, len(output.prompt_token_ids) - 1 : -1].double().log_softmax(-1)
        assert choice.token_ids == expected.argmax(-1).tolist()
        assert choice.logprobs is not None
        for place, (token_id, found) in enumerate(zip(choice.token_ids, choice.logprobs, strict=True)):
            assert list(found) == expected[place].topk(2).indices.tolist()
            assert found[token_id].logprob == pytest.approx(expected[place, token_id].item(), abs=1e-4)
            assert found[token_id].rank == 1
            assert found[token_id].decoded_token == llm.get_tokenizer().token(token_id)
        total = sum(expected[place, token_id].item() for place, token_id in enumerate(choice.token_ids))
        assert choice.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_without_logprobs_asked_for_there_are_none(llm: LLM) -> None:
    [choice] = llm.generate("x", SHORT)[0].outputs
    assert (choice.logprobs, choice.cumulative_logprob) == (None, None)


def test_tokens_are_those_of_the_bare_core(llm: LLM, tiny_model: Path) -> None:
    settings = EngineConfig(dtype="float32", kv_cache_memory_bytes=4 << 20)
    core = EngineCore(load_model(tiny_model, settings), settings, [257])
    params = SamplingParams(max_tokens=20, seed=3, n=2)
    prompt_token_ids = llm.get_tokenizer().encode("the same")
    found: dict[str, list[int]] = {"0": [], "1": []}
    for choice in (0, 1):
        core.add_request(str(choice), prompt_token_ids, params, choice=choice)
    while core.has_unfinished():
        for one in core.step().outputs:
            found[one.request_id] += one.token_ids
    [output] = llm.generate("the same", params)
    assert [choice.token_ids for choice in output.outputs] == [found["0"], found["1"]]


def test_choices_stand_in_the_order_of_their_index_and_differ(llm: LLM) -> None:
    [output] = llm.generate("x", SamplingParams(max_tokens=8, n=6, ignore_eos=True))
    assert [choice.index for choice in output.outputs] == list(range(6))
    assert len({tuple(choice.token_ids) for choice in output.outputs}) > 1


def test_stop_strings_end_a_text_and_are_named(llm: LLM) -> None:
    [free] = llm.generate("x", GREEDY)
    text = free.outputs[0].text
    stop = text[4:6]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=(stop,))
    [choice] = llm.generate("x", params)[0].outputs
    assert choice.text == text[: text.index(stop)]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)


def test_the_prefix_cache_is_shared_by_calls_and_each_result_says_what_it_found(new_llm: Callable[..., LLM]) -> None:
    llm, prompt = new_llm(), "x" * 70
    first, second = llm.generate(prompt, SHORT)[0], llm.generate([prompt, prompt[:40] + "y"], SHORT)
    assert first.num_cached_tokens == 0
    assert [output.num_cached_tokens for output in second] == [64, 32]
    [choices] = llm.generate("z" * 70, SamplingParams(max_tokens=3, n=2))
    assert choices.num_cached_tokens == 0


def test_the_times_of_a_request_follow_each_other(llm: LLM) -> None:
    metrics = llm.generate("x", SHORT)[0].metrics
    assert metrics.first_token_time is not None
    assert metrics.finished_time is not None
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time


def test_what_the_engine_did_is_counted(llm: LLM) -> None:
    before = llm.get_metrics()
    llm.generate(["abc", "defg"], SHORT)
    after = llm.get_metrics()
    assert after.num_prompt_tokens - before.num_prompt_tokens == 7
    assert after.num_generation_tokens - before.num_generation_tokens == 12
    assert after.num_steps - before.num_steps >= 6


# ── what may go in ───────────────────────────────────────────────────────────────────────────────────────────────────

CHAT = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("abc", ["abc"]),
        (["abc"], ["abc"]),
        (("abc", "d"), ["abc", "d"]),
        ({"prompt": "abc"}, ["abc"]),
        ([{"prompt": "abc"}, "d"], ["abc", "d"]),
        ([66, 67], [None]),
        ([[66, 67], [68]], [None, None]),
        ({"prompt_token_ids": [66, 67]}, [None]),
        ([{"prompt_token_ids": [66]}, {"prompt_token_ids": (67,)}], [None, None]),
        (CHAT, ["<user>hi</><assistant>"]),
        ([CHAT, CHAT], ["<user>hi</><assistant>"] * 2),
        ({"messages": CHAT, "add_generation_prompt": False}, ["<user>hi</>"]),
        ([], []),
    ],
)
def test_prompts_come_in_many_forms(llm: LLM, given: Any, prompts: list[str | None]) -> None:
    outputs = llm.generate(given, SHORT)
    assert [output.prompt for output in outputs] == prompts
    assert [output.error for output in outputs] == [None] * len(prompts)


def test_arrays_and_iterators_are_prompts_too(llm: LLM) -> None:
    import numpy as np

    assert llm.generate([np.array([66, 67]), np.array([68])], SHORT)[0].prompt_token_ids == [66, 67]
    assert llm.generate(list(np.array([66, 67])), SHORT)[0].prompt_token_ids == [66, 67]
    assert [output.prompt for output in llm.generate(iter("abc"), SHORT)] == ["a", "b", "c"]
    assert [output.prompt for output in llm.generate((f"p{i}" for i in range(9)), SHORT)] == [f"p{i}" for i in range(9)]


def test_a_chat_goes_through_the_models_template_or_the_callers(llm: LLM) -> None:
    assert llm.chat(CHAT, SHORT)[0].prompt == "<user>hi</><assistant>"
    assert llm.chat([CHAT, CHAT], SHORT)[1].prompt == "<user>hi</><assistant>"
    assert "f" in (llm.chat(CHAT, SHORT, tools=TOOLS)[0].prompt or "")
    template = "{{ messages[0].content }}{{ colour }}"
    [output] = llm.chat(CHAT, SHORT, chat_template=template, chat_template_kwargs={"colour": "red"})
    assert output.prompt == "hired"


def test_the_last_message_of_a_chat_can_be_continued(llm: LLM) -> None:
    chat = [*CHAT, {"role": "assistant", "content": "well, hi"}]
    [output] = llm.chat(chat, SHORT, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt == "<user>hi</><assistant>well, hi"
    [both] = llm.chat(chat, SHORT, continue_final_message=True)
    assert both.error is not None
    assert both.error.code == "chat_template_error"


def test_without_params_the_models_own_recommendation_counts(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    assert params == SamplingParams(max_tokens=None)
    [output] = llm.generate({"prompt_token_ids": [65] * 250})
    assert 1 <= len(output.outputs[0].token_ids) <= 6


@pytest.mark.parametrize("given", [42, None, 1.5])
def test_what_is_no_prompt_at_all_is_refused_before_work(llm: LLM, given: Any) -> None:
    with pytest.raises(EngineError) as caught:
        llm.generate(given, SHORT)
    assert caught.value.code == "invalid_prompt"


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────

BAD = {
    "empty": ("", "empty_prompt"),
    "no tokens": ([], "empty_prompt"),
    "too long": ("x" * 256, "context_length_exceeded"),
    "a number": (42, "invalid_prompt"),
    "nothing": (None, "invalid_prompt"),
    "no known key": ({}, "invalid_prompt"),
    "a token that is none": ([258], "invalid_prompt"),
    "a negative token": ([-1], "invalid_prompt"),
    "no token": (["a"], "invalid_prompt"),
    "half a character": ("\ud800", "invalid_prompt"),
    "text that is none": ({"prompt": 7}, "invalid_prompt"),
    "messages that are none": ({"messages": "hi"}, "invalid_prompt"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_prompt_fails_alone(llm: LLM, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    prompt, code = BAD[kind]
    before, bad, after = llm.generate(["good", prompt, "good"], SamplingParams(temperature=0.0, max_tokens=4, n=2))
    assert bad.error is not None
    assert bad.error.code == code
    assert [(choice.finish_reason, choice.text) for choice in bad.outputs] == [("error", "")] * 2
    assert bad.finished
    assert before.error is None
    assert texts([before]) == texts([after])
    assert "1 of 3 prompts failed; the first is prompt 1" in caplog.text
    assert is_idle(llm)


def test_lengths_that_differ_are_an_error_before_work_starts(llm: LLM) -> None:
    before = llm.get_metrics().num_steps
    with pytest.raises(EngineError, match=r"3 prompts and 2 sampling params") as caught:
        llm.generate(["a", "b", "c"], [SHORT, SHORT])
    assert caught.value.code == "params_mismatch"
    assert llm.get_metrics().num_steps == before


def test_params_may_come_from_an_iterator_and_must_not_run_out(llm: LLM) -> None:
    assert len(llm.generate(["a", "b", "c"], itertools.repeat(SHORT))) == 3
    with pytest.raises(EngineError) as caught:
        llm.generate(["a", "b", "c"], iter([SHORT, SHORT]))
    assert caught.value.code == "params_mismatch"


def test_params_that_are_none_fail_their_prompt_alone(llm: LLM) -> None:
    outputs = llm.generate(["a", "b"], [SHORT, {"max_tokens": 3}])  # type: ignore[list-item]
    assert outputs[0].error is None
    assert outputs[1].error is not None
    assert outputs[1].error.code == "invalid_params"


def test_an_iterator_that_fails_is_heard_after_what_it_gave(llm: LLM) -> None:
    def prompts() -> Iterator[str]:
        yield from ("a", "b")
        raise OSError("the file is gone")

    stream = llm.generate_stream(prompts(), SHORT, every_n=None)
    assert sorted(output.index for output in itertools.islice(stream, 2)) == [0, 1]
    with pytest.raises(OSError, match="the file is gone"):
        next(stream)
    assert list(stream) == []
    with pytest.raises(OSError, match="the file is gone"):
        llm.generate(prompts(), SHORT)
    assert is_idle(llm)


def test_an_engine_that_dies_says_so_at_once_and_ever_after(
    new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = new_llm()

    def fail() -> None:
        raise MemoryError("no pages")

    monkeypatch.setattr(llm._core, "step", fail)
    with pytest.raises(EngineError, match="MemoryError: no pages") as caught:
        llm.generate(PROMPTS, SHORT)
    assert caught.value.code == "engine_died"
    with pytest.raises(EngineError, match="MemoryError"):
        llm.generate_stream("x")


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("gpu_memory_utilization", "kv_cache_memory_bytes"),
        ("max_model_length", "did you mean max_model_len"),
        ("zzz", "there are device, dtype"),
    ],
)
def test_an_option_that_is_not_ours_is_refused_with_a_remedy(tiny_model: Path, option: str, remedy: str) -> None:
    with pytest.raises(EngineError, match=remedy) as caught:
        LLM(tiny_model, **{option: 1})
    assert (caught.value.code, caught.value.param) == ("invalid_config", option)


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match=r"there is no file .*nowhere\.gguf"):
        LLM("nowhere.gguf")


# ── seeds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_can_be_repeated_and_its_prompts_and_calls_differ(new_llm: Callable[..., LLM]) -> None:
    runs: list[list[list[list[int]]]] = []
    for _ in range(2):
        llm = new_llm(seed=5)
        runs.append([tokens(llm.generate(["same"] * 4, SHORT)), tokens(llm.generate(["same"] * 4, SHORT))])
    assert runs[0] == runs[1]
    first, second = runs[0]
    assert len({tuple(one) for one in first + second}) == 8
    assert tokens(new_llm(seed=6).generate(["same"] * 4, SHORT)) != first


def test_a_seed_of_a_request_decides_it_alone(new_llm: Callable[..., LLM]) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True, seed=9)
    alone = tokens(new_llm(seed=1).generate("same", params))
    assert tokens(new_llm(seed=2).generate(["other", "same"], params))[1:] == alone


def test_the_first_call_draws_what_a_job_with_that_seed_draws() -> None:
    from streamrunner.runner.request import row_params
    from streamrunner.runner.rows import Row
    from streamrunner.runner.spec import JobSpec

    spec = JobSpec.model_validate({"name": "j", "model": "m", "requests": [{"prompt": "x"}]})
    drawn = [row_params(Row(index, "c", "completion"), spec, 7).seed for index in range(5)]
    assert [request_seed(7, index) for index in range(5)] == drawn


# ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_calls_from_many_threads_share_the_engine(llm: LLM) -> None:
    expected = texts(llm.generate(PROMPTS, GREEDY))
    found: list[list[list[str]]] = []
    threads = [threading.Thread(target=lambda: found.append(texts(llm.generate(PROMPTS, GREEDY)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_a_call_leaves_nothing_behind(llm: LLM) -> None:
    for _ in range(3):
        llm.generate(PROMPTS, SHORT)
        assert is_idle(llm)
    dispatcher = llm._dispatcher
    assert not dispatcher._calls
    assert not dispatcher._owners
    assert not dispatcher._processor._texts


def test_a_closed_llm_says_so_and_can_be_closed_again(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm()
    llm.generate("x", SHORT)
    llm.close()
    llm.close()
    with pytest.raises(EngineError) as caught:
        llm.generate("x", SHORT)
    assert caught.value.code == "engine_closed"


def test_closing_ends_the_streams_that_are_open(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm()
    stream = llm.generate_stream("x", ENDLESS)
    next(stream)
    with llm:
        pass
    with pytest.raises(EngineError) as caught:
        list(stream)
    assert caught.value.code == "engine_closed"


def test_a_forgotten_llm_ends_its_threads(eventually: Any, tiny_model: Path) -> None:
    before = threading.active_count()
    llm = LLM(tiny_model, dtype="float32", kv_cache_memory_bytes=1 << 20)
    llm.generate("x", SHORT)
    core = weakref.ref(llm._core)
    del llm
    gc.collect()
    eventually(lambda: threading.active_count() <= before)
    gc.collect()
    assert core() is None


def test_an_llm_without_a_name_lives_as_long_as_its_stream(tiny_model: Path) -> None:
    stream = LLM(tiny_model, dtype="float32", kv_cache_memory_bytes=1 << 20).generate_stream(PROMPTS, SHORT)
    gc.collect()
    assert len([output for output in stream if output.finished]) == len(PROMPTS)


def test_the_names_are_there_without_torch() -> None:
    code = """
        import sys
        import streamrunner.engine as engine
        engine.SamplingParams(max_tokens=3), engine.EngineError, engine.RequestOutput
        print("torch" in sys.modules, sorted(name for name in engine.__all__ if name not in dir(engine)))
        engine.LLM
        print("torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False []", "True"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import streamrunner.engine as engine

    with pytest.raises(AttributeError, match="AsyncLLM"):
        engine.AsyncLLM  # noqa: B018
