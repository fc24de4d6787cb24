"""The engine on a tiny random model, and the real one against transformers in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.core import EngineCore
from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrunner.engine.step import RequestStep

SHAPE = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "logprobs": 3}


def make_model(folder: Path) -> None:
    """A random model, saved to the folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
    # Random initial weights are so small that every token is as likely as any other: spread them.
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.float().save_pretrained(folder)


@pytest.fixture
def core(tmp_path: Path) -> EngineCore:
    make_model(tmp_path)
    return new_core(tmp_path)


def new_core(folder: Path, **settings: Any) -> EngineCore:
    config = EngineConfig(kv_cache_memory_bytes=16 << 20, dtype="float32", **settings)
    return EngineCore(load_model(folder, config), config, eos_token_ids=[5])


def prompts(count: int = 6) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(6, 97, (3 + 17 * i,), generator=generator).tolist() for i in range(count)]


def run(core: EngineCore) -> dict[str, list[RequestStep]]:
    steps: dict[str, list[RequestStep]] = {}
    while core.has_unfinished():
        for one in core.step().outputs:
            steps.setdefault(one.request_id, []).append(one)
    return steps


def tokens_of(steps: list[RequestStep]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


@pytest.mark.timeout(400)
@pytest.mark.model
def test_the_real_model_says_what_transformers_says(smollm2: Path) -> None:
    """16 prompts of mixed length in one batch, 48 tokens each, all equal in float32."""
    from transformers import AutoModelForCausalLM

    core = new_core_of(smollm2)
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(100, 40_000, (5 + 9 * i,), generator=generator).tolist() for i in range(16)]
    for index, prompt in enumerate(texts):
        core.add_request(str(index), prompt, SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True))
    steps = run(core)
    reference = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    for index, prompt in enumerate(texts):
        ours = tokens_of(steps[str(index)])
        # Greedy decoding token by token equals the argmax at every place of one pass over prompt and output.
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + ours])).logits[0, len(prompt) - 1 : -1]
        assert len(ours) == 48
        assert ours == logits.argmax(-1).tolist(), f"prompt {index}"


def new_core_of(folder: Path) -> EngineCore:
    config = EngineConfig(max_model_len=512, kv_cache_memory_bytes=256 << 20, dtype="float32")
    return EngineCore(load_model(folder, config), config)


def test_eos_and_stop_tokens_end_a_sequence_and_count_in_it(core: EngineCore) -> None:
    prompt = prompts()[2]
    core.add_request("free", prompt, SamplingParams(**GREEDY))
    greedy = tokens_of(run(core)["free"])
    stop = greedy[4]
    first = greedy.index(stop)
    core.add_request("stopped", prompt, SamplingParams(**{**GREEDY, "stop_token_ids": (stop,)}))
    steps = run(core)["stopped"]
    assert tokens_of(steps) == greedy[: first + 1]
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("stop", stop)
    core.add_request("late", prompt, SamplingParams(**{**GREEDY, "stop_token_ids": (stop,), "min_tokens": first + 3}))
    assert stop not in tokens_of(run(core)["late"])[: first + 2]


def test_a_sequence_ends_at_its_limit_or_at_the_contexts(core: EngineCore) -> None:
    core.add_request("short", prompts()[1], SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))
    core.add_request("rest", [7] * 250, SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
    steps = run(core)
    assert len(tokens_of(steps["short"])) == 3
    assert len(tokens_of(steps["rest"])) == 6
    assert {one[-1].finish_reason for one in steps.values()} == {"length"}


def test_generated_tokens_that_reach_the_limit_end_it_at_once(core: EngineCore) -> None:
    core.add_request("done", prompts()[1], SamplingParams(temperature=0.0, max_tokens=3), generated=[9, 8, 7])
    [step] = run(core)["done"]
    assert (step.token_ids, step.finish_reason) == ((), "length")


def test_what_cannot_run_is_refused_by_name_and_harms_nobody(core: EngineCore) -> None:
    params = SamplingParams(**GREEDY)
    core.add_request("a", prompts()[0], params)
    for prompt, code in (([7] * 256, "context_length_exceeded"), ([], "empty_prompt"), ([7], "duplicate_request")):
        with pytest.raises(EngineError) as caught:
            core.add_request("a" if code == "duplicate_request" else "b", prompt, params)
        assert caught.value.code == code
    assert len(tokens_of(run(core)["a"])) == 24


@pytest.mark.parametrize("stop_token_ids", [(10**6,), (-1,), (97,), (1 << 80,)])
def test_a_stop_token_that_is_none_harms_nobody(core: EngineCore, stop_token_ids: tuple[int, ...]) -> None:
    core.add_request("plain", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
    stops = SamplingParams(
        temperature=0.0, max_tokens=4, min_tokens=2, ignore_eos=True, stop_token_ids=stop_token_ids, seed=1
    )
    core.add_request("odd", [1, 2, 3], stops)
    steps = run(core)
    assert [len(tokens_of(steps[name])) for name in ("plain", "odd")] == [4, 4]


def test_an_aborted_sequence_is_gone_and_its_pages_are_free(core: EngineCore) -> None:
    core.add_request("a", prompts()[3], SamplingParams(**GREEDY))
    core.add_request("b", prompts()[4], SamplingParams(**GREEDY))
    core.step()
    core.abort("a")
    core.abort("a")
    core.abort("never was")
    steps = run(core)
    assert "a" not in steps
    assert len(tokens_of(steps["b"])) == 23
    assert core._pool.num_free == core._pool.num_blocks
    core._pool.check()


def test_a_row_that_meets_nan_fails_alone(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    forward: Callable[..., Any] = core._model.forward.__func__  # type: ignore[attr-defined]

    def poisoned(self: Any, batch: Any, cache: Any) -> Any:
        logits = forward(self, batch, cache)
        logits[0] = float("nan")
        return logits

    monkeypatch.setattr(type(core._model), "forward", poisoned)
    core.add_request("a", prompts()[0], SamplingParams(**GREEDY))
    core.add_request("b", prompts()[1], SamplingParams(**GREEDY))
    outputs = {one.request_id: one for one in core.step().outputs}
    assert outputs["a"].error is not None
    assert outputs["a"].error.code == "nan_logits"
    assert outputs["b"].error is None


def test_a_cache_that_cannot_hold_one_sequence_is_refused_with_the_size_it_needs(tmp_path: Path) -> None:
    make_model(tmp_path)
    config = EngineConfig(kv_cache_memory_bytes=1 << 10, dtype="float32")
    with pytest.raises(EngineError, match="kv_cache_memory") as caught:
        EngineCore(load_model(tmp_path, config), config)
    assert caught.value.code == "kv_cache_too_small"


def test_counters_say_what_was_computed_and_what_was_reused(core: EngineCore) -> None:
    prompt = [7] * 100
    core.add_request("a", prompt, SamplingParams(**GREEDY))
    first = core.step()
    assert (first.num_prompt_tokens, first.num_cached_tokens, first.num_running) == (100, 0, 1)
    core.add_request("b", prompt, SamplingParams(**GREEDY))
    second = core.step()
    assert (second.num_prompt_tokens, second.num_cached_tokens, second.num_running) == (4, 96, 2)
    assert 0 < second.kv_cache_usage < 1


@pytest.mark.parametrize("budget", [16, 512])
def test_prompt_log_probabilities_are_those_of_transformers(tmp_path: Path, budget: int) -> None:
    from transformers import LlamaForCausalLM

    make_model(tmp_path)
    core = new_core(tmp_path, max_num_batched_tokens=budget, max_num_seqs=8)
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=3, repetition_penalty=1.5)
    given = [*prompts(), prompts()[5] + prompts()[4] * 2]
    for again in (0, 1):  # the second time, prefix reuse would skip most of it
        for index, prompt in enumerate(given):
            core.add_request(f"{again}.{index}", prompt, params)
    steps = run(core)
    for name, found in steps.items():
        prompt = given[int(name[2:])]
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        [scores] = [one.prompt_logprobs for one in found if one.prompt_logprobs is not None]
        assert [token[0].token_id for token in scores] == prompt[1:]
        for row, (token, *top) in zip(expected, scores, strict=False):
            assert token.logprob == pytest.approx(float(row[token.token_id]), abs=1e-4)
            assert token.rank == int((row > row[token.token_id]).sum()) + 1
            assert [one.token_id for one in top] == row.topk(3).indices.tolist()


def test_nothing_is_sampled_for_a_request_that_only_scores(core: EngineCore) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    core.add_request("one", [7], params)
    core.add_request("all", list(range(6, 97)) * 2 + [8] * 74, params)  # it fills the context to the last token
    core.add_request("second choice", [7, 8, 9], params, choice=1)
    steps = run(core)
    assert steps["one"][0][1:5] == ((), None, "length", None)
    assert steps["one"][0].prompt_logprobs == ()
    [scored] = steps["all"]
    assert (scored.token_ids, scored.finish_reason, len(scored.prompt_logprobs or ())) == ((), "length", 255)
    assert steps["second choice"][0].prompt_logprobs is None
    core._pool.check()


def test_rules_that_leave_no_token_fail_their_row_alone(core: EngineCore) -> None:
    core.add_request("stuck", [7, 8], SamplingParams(allowed_token_ids=(9,), stop_token_ids=(9,), min_tokens=1))
    core.add_request("fine", [7, 8], SamplingParams(max_tokens=3, ignore_eos=True))
    steps = run(core)
    [failed] = steps["stuck"]
    assert failed.error is not None
    assert (failed.finish_reason, failed.error.code) == ("error", "no_token_allowed")
    assert sum(len(one.token_ids) for one in steps["fine"]) == 3


def test_log_probabilities_are_the_models_own_whatever_the_rules(core: EngineCore) -> None:
    plain = {"temperature": 0.0, "max_tokens": 1, "logprobs": 2}
    core.add_request("plain", [7, 8], SamplingParams(**plain))
    core.add_request("ruled", [7, 8], SamplingParams(**plain, logit_bias={50: 100.0}))
    steps = run(core)
    [[*plain_logprobs]], [[*ruled_logprobs]] = (steps[name][0].logprobs or () for name in ("plain", "ruled"))
    assert ruled_logprobs[0].token_id == 50
    assert ruled_logprobs[0].rank > 1
    assert ruled_logprobs[1:] == plain_logprobs[1:]
