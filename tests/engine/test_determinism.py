"""A sequence's tokens and log-probabilities do not depend, to the bit, on anything but the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.constraints import Constraints
from streamrunner.engine.core import EngineCore
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from streamrunner.engine.models.decoder import DecoderModel

NUM = 12
PARAMS = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 40, "ignore_eos": True, "logprobs": 0, "seed": 11}
RULES = {
    "presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.3, "logit_bias": {3: 4.0, 7: -100.0},
    "min_tokens": 5, "stop_token_ids": (9,),
}  # fmt: skip
WORDS = Constraints(bad_words=((11,), (3, 3), (12, 13, 14)))
Result = tuple[list[int], list[float], list[float]]


_KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "kv_cache_dtype": "int8", "quantization": "int8"},
}


@pytest.fixture(scope="module", params=sorted(_KINDS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=500, hidden_size=96, intermediate_size=128, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return load_model(folder, EngineConfig(**_KINDS[request.param]))


@pytest.fixture(scope="module")
def expected(model: DecoderModel) -> dict[int, Result]:
    """Each sequence on its own, without prefix reuse."""
    found: dict[int, Result] = {}
    for index in range(NUM):
        found |= run(new_core(model, enable_prefix_caching=False), [index])
    return found


def new_core(model: DecoderModel, **settings: Any) -> EngineCore:
    config = EngineConfig(**{"kv_cache_memory_bytes": 64 << 20, "block_size": 16, **settings})
    return EngineCore(model, config)


def prompt(index: int) -> list[int]:
    generator = torch.Generator().manual_seed(index % 9)  # some share their prompt, all begin alike
    return [7] * 20 + torch.randint(0, 500, (11 * (index % 9) + 1,), generator=generator).tolist()


def run(core: EngineCore, order: list[int], generated: dict[int, list[int]] | None = None) -> dict[int, Result]:
    found: dict[int, Result] = {index: ([], [], []) for index in order}
    for index in order:
        before = (generated or {}).get(index, [])
        has_rules = index % 2 == 0
        settings = {**PARAMS, **(RULES if has_rules else {}), "prompt_logprobs": 2 if index % 3 == 0 else None}
        core.add_request(
            str(index), prompt(index), SamplingParams(**{**settings, "seed": index}),
            generated=before, constraints=WORDS if has_rules else None,
        )  # fmt: skip
    while core.has_unfinished():
        for one in core.step().outputs:
            tokens, logprobs, scores = found[int(one.request_id)]
            tokens.extend(one.token_ids)
            logprobs.extend(token[0].logprob for token in one.logprobs or ())
            scores.extend(entry.logprob for token in one.prompt_logprobs or () for entry in token)
    core._pool.check()
    return found


@pytest.mark.parametrize("budget", [16, 64, 512])
def test_in_one_batch_with_chunks_of_any_size(model: DecoderModel, expected: dict[int, Result], budget: int) -> None:
    core = new_core(model, max_num_batched_tokens=budget, max_num_seqs=NUM)
    assert run(core, list(range(NUM))) == expected


def test_in_any_order_and_few_at_a_time(model: DecoderModel, expected: dict[int, Result]) -> None:
    assert run(new_core(model, max_num_seqs=3), list(reversed(range(NUM)))) == expected


def test_with_and_without_prefix_reuse(model: DecoderModel, expected: dict[int, Result]) -> None:
    core = new_core(model)
    assert run(core, list(range(NUM))) == expected
    assert run(core, list(range(NUM))) == expected
    assert run(new_core(model, enable_prefix_caching=False), list(range(NUM))) == expected


def test_under_forced_preemption(model: DecoderModel, expected: dict[int, Result]) -> None:
    per_page = model.cache_bytes_per_token * 16
    core = new_core(model, kv_cache_memory_bytes=14 * per_page, max_model_len=200, enable_prefix_caching=False)
    assert run(core, list(range(NUM))) == expected
    assert core._scheduler.num_preemptions > 0


@pytest.mark.parametrize("cut", [1, 17, 39])
def test_continued_from_given_tokens(model: DecoderModel, expected: dict[int, Result], cut: int) -> None:
    generated = {index: tokens[:cut] for index, (tokens, *_) in expected.items() if len(tokens) > cut}
    rest = run(new_core(model), list(generated), generated)
    for index in generated:
        tokens, logprobs, scores = expected[index]
        assert rest[index] == (tokens[cut:], logprobs[cut:], scores)
