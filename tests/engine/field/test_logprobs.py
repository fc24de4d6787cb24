"""Log-probabilities and sameness that failed elsewhere, as reported."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine import LLM, EngineError, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path


def logprobs_of(output: RequestOutput) -> list[dict[int, dict[str, Any]]]:
    return [
        {token_id: asdict(one) for token_id, one in place.items()}
        for choice in output.outputs
        for place in choice.logprobs or ()
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 1},
        {"top_p": 0.01},
        {"min_p": 1.0},
        {"min_tokens": 8},
        {"temperature": 0.0},
        {"allowed_token_ids": [65, 66]},
        {"logit_bias": {65: -100.0}},
        {"bad_words": ["A", "e"]},
        {"prompt_logprobs": 20},
    ],
    ids=str,
)
def test_masked_tokens_leave_log_probabilities_that_json_knows(llm: LLM, settings: dict[str, Any]) -> None:
    """vllm-project/vllm#10234, sgl-project/sglang#5984: -inf, and a row that no JSON encoder would take."""
    params = SamplingParams(**{"max_tokens": 8, "logprobs": 20, **settings})
    outputs = llm.generate(["a", "b", "c"], params)
    for output in outputs:
        assert len(logprobs_of(output)) == len(output.outputs[0].token_ids)
        json.dumps(logprobs_of(output), allow_nan=False)
        places = [place for place in output.prompt_logprobs or () if place is not None]
        json.dumps([[one.logprob for one in place.values()] for place in places], allow_nan=False)


def test_how_many_prompt_logprobs_may_be_asked_for_is_said() -> None:
    """vllm-project/vllm#24948: -1 for all was documented and refused. Here it is neither: the limit is in the error."""
    with pytest.raises(EngineError, match="between 0 and 20") as caught:
        SamplingParams(prompt_logprobs=-1)
    assert caught.value.param == "prompt_logprobs"


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def small_llm(request: pytest.FixtureRequest, tiny_model: Path) -> LLM:
    return LLM(tiny_model, dtype=request.param, kv_cache_memory_bytes=4 << 20, max_num_seqs=100)


def test_a_prompt_gets_the_same_text_alone_and_among_a_hundred(small_llm: LLM) -> None:
    """vllm-project/vllm#5898, #6735, #9450, #23138: temperature 0, batch of 1 against 100, other texts."""
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=1)
    prompts = [f"prompt number {number * number}" for number in range(100)]
    together = small_llm.generate(prompts, params)
    for index in (0, 41, 99):
        [alone] = small_llm.generate(prompts[index], params)
        assert alone.outputs == together[index].outputs
    backwards = small_llm.generate(prompts[::-1], params)
    assert [output.outputs for output in backwards[::-1]] == [output.outputs for output in together]


def test_a_seeded_prompt_gets_the_same_text_in_any_company(small_llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=3, n=2)
    alone = small_llm.generate("the same", params)[0].outputs
    assert small_llm.generate(["other"] * 60 + ["the same"], params)[-1].outputs == alone
