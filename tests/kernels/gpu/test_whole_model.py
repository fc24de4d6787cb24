"""The engine's own step loop with every op forced through its Triton body."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.core import EngineCore
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.weights import load_model

# The benchmarks are scripts, not a package; the lane's models are theirs.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

SHAPE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip
PROMPTS = [[5, 9, 11], list(range(20, 41)), [7] * 9]
NEW_TOKENS = 3


def save(folder: Path, family: str) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SHAPE)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    return model


def generate(folder: Path, prompts: list[list[int]], params: dict[str, Any], **settings: Any) -> list[list[int]]:
    config = EngineConfig(kv_cache_memory_bytes=1 << 20, dtype="float32", **settings)
    core = EngineCore(load_model(folder, config), config)
    for index, prompt in enumerate(prompts):
        core.add_request(str(index), prompt, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, **params))
    tokens: dict[str, list[int]] = {}
    while core.has_unfinished():
        for one in core.step().outputs:
            tokens.setdefault(one.request_id, []).extend(one.token_ids)
    return [tokens[str(index)] for index in range(len(prompts))]


def test_a_model_in_triton_says_what_transformers_says(tmp_path: Path) -> None:
    """Three prompts at once, in chunks of 16 tokens: prefill, chunked prefill and decode share batches."""
    reference = save(tmp_path, "Qwen3")
    ours = generate(tmp_path, PROMPTS, {"temperature": 0.0}, max_num_batched_tokens=16, max_num_seqs=4)
    for prompt, tokens in zip(PROMPTS, ours, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert tokens == logits.argmax(-1).tolist()


def test_sampled_tokens_do_not_depend_on_the_batch(tmp_path: Path, deterministic: None) -> None:
    save(tmp_path, "Llama")
    params = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "seed": 3}
    together = generate(tmp_path, PROMPTS[:2], params)
    assert [generate(tmp_path, [prompt], params)[0] for prompt in PROMPTS[:2]] == together


def test_the_lanes_model_with_plain_products_and_the_pages_of_a_gpu(deterministic: None) -> None:
    """Prefill in chunks, one span for each sequence, keys token by token in memory, products by our own kernel."""
    from gpu_kit.model import batch_of, build, new_cache

    built = build("qwen3-0.6b", torch.device("cpu"), torch.float32, num_layers=1, tiny=True)
    token_ids = torch.randint(0, 300, (2, 22), generator=torch.Generator().manual_seed(3))
    cache = [one._replace(k=one.k.transpose(2, 3).contiguous().transpose(2, 3)) for one in new_cache(built.ours, 2)]
    with torch.inference_mode():
        steps = []
        for first, last in ((0, 9), (9, 21), (21, 22)):
            count = last - first
            batch = batch_of(token_ids, first, last)
            batch = batch._replace(tiles=torch.tensor([[0, 0, count], [1, count, count]]))
            steps.append(built.ours.forward(batch, cache))
        theirs = built.theirs(token_ids).logits[:, [8, 20, 21]]
    torch.testing.assert_close(torch.stack(steps, 1), theirs, atol=2e-5, rtol=1e-3)
