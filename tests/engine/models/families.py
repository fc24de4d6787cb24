"""Tiny random models of any family, and what transformers says of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.core import EngineCore
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.engine.step import RequestStep

SHAPE = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "logprobs": 3}
LENGTHS = (3, 20, 37, 130)


def save_model(name: str, extra: dict[str, Any], folder: Path) -> Any:
    """A random model of the family that transformers calls `name`, saved to the folder."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **extra})
    kind = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM", None)
    model = (kind or getattr(transformers, f"{name}LMHeadModel"))(config).float().eval()
    for parameter in model.parameters():
        # Random initial weights are so small that every token is as likely as any other, and norms and biases say
        # nothing yet: spread them.
        parameter.data.mul_(3.0) if parameter.dim() > 1 else parameter.data.add_(torch.randn(parameter.shape) * 0.2)
    model.save_pretrained(folder)
    return model


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(6, 97, (length,), generator=generator).tolist() for length in lengths]


def new_core(folder: Path, **settings: Any) -> EngineCore:
    config = EngineConfig(kv_cache_memory_bytes=16 << 20, dtype="float32", max_num_seqs=16, **settings)
    return EngineCore(load_model(folder, config), config)


def run(core: EngineCore, given: list[tuple[list[int], list[int]]]) -> list[list[RequestStep]]:
    """All prompts at once, each with the tokens it has already; the steps of each."""
    for index, (prompt, generated) in enumerate(given):
        core.add_request(str(index), prompt, SamplingParams(**GREEDY), generated=generated)
    steps: list[list[RequestStep]] = [[] for _ in given]
    while core.has_unfinished():
        for one in core.step().outputs:
            steps[int(one.request_id)].append(one)
    return steps


def check(reference: Any, prompt: list[int], steps: list[RequestStep]) -> list[int]:
    """Greedy tokens and log-probabilities are those of one pass of transformers over prompt and output."""
    ours = [token for step in steps for token in step.token_ids]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + ours])).logits[0, len(prompt) - 1 : -1].double()
    assert ours == logits.argmax(-1).tolist()
    expected = logits.log_softmax(-1)
    for position, step in enumerate(steps):
        assert step.logprobs is not None
        sampled, *top = step.logprobs[0]
        assert sampled.logprob == pytest.approx(expected[position, ours[position]].item(), abs=1e-4)
        assert [one.token_id for one in top] == expected[position].topk(3).indices.tolist()
        assert sampled.rank == 1
    return ours
