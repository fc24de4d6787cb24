"""Whole models with random weights in real shapes: ours and transformers' over the same weights, without a network."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from streamrunner.engine.batch import PackedBatch
from streamrunner.engine.models.cache import KVCache
from streamrunner.engine.models.config import ModelConfig
from streamrunner.engine.models.llama import LlamaLayer, LlamaModel
from streamrunner.kernels.matmul import invariant_linear

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor

BLOCK = 32
# (family, sizes): the models the lane is about, and toys to try it with.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-0.6b": ("qwen3", {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True,
    }),
    "llama-3.1-8b": ("llama", {
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256,
    }),
    "qwen3-14b": ("qwen3", {
        "hidden_size": 5120, "intermediate_size": 17_408, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
    }),
}  # fmt: skip
_TOY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300,
}  # fmt: skip
_MAX_POSITION = 4096


class DeviceLinear:
    """A plain product, by the kernel that sums in one order where torch is in its deterministic mode."""

    def __init__(self, weight: Tensor) -> None:
        """weight: [out, in]."""
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if torch.are_deterministic_algorithms_enabled():
            return invariant_linear(x, self.weight)
        return torch.nn.functional.linear(x, self.weight)


class Built(NamedTuple):
    """Two models over one set of weights. theirs: transformers'."""

    ours: LlamaModel
    theirs: Any


def build(name: str, device: torch.device, dtype: torch.dtype, *, num_layers: int = 0, tiny: bool = False) -> Built:
    """A model of SHAPES with random weights; num_layers cuts it short, 0 keeps all."""
    from transformers import AutoConfig, AutoModelForCausalLM

    new_model: Any = AutoModelForCausalLM.from_config
    family, sizes = SHAPES[name]
    sizes = {**sizes, **(_TOY if tiny else {}), "max_position_embeddings": _MAX_POSITION}
    if num_layers:
        sizes["num_hidden_layers"] = num_layers
    config = AutoConfig.for_model(family, **sizes)
    with device:
        theirs = new_model(config, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        shape = ModelConfig.load(Path(folder))
    return Built(_from_weights(shape, theirs.state_dict(), device), theirs.eval())


def _from_weights(shape: ModelConfig, weights: dict[str, Tensor], device: torch.device) -> LlamaModel:
    tables = shape.rotary_tables(_MAX_POSITION)
    embedding = weights["model.embed_tokens.weight"]

    def norm(name: str) -> Any:
        found = weights.get(f"{name}.weight")
        return None if found is None else found.float()

    def linear(at: str, *names: str) -> Any:
        return DeviceLinear(torch.cat([weights[f"{at}.{name}_proj.weight"] for name in names]))

    layers = []
    for index, layer in enumerate(shape.layers):
        at = f"model.layers.{index}"
        rotary = tables[layer.rope]
        layers.append(
            LlamaLayer(
                input_norm=norm(f"{at}.input_layernorm"),
                qkv=linear(f"{at}.self_attn", "q", "k", "v"),
                q_norm=norm(f"{at}.self_attn.q_norm"),
                k_norm=norm(f"{at}.self_attn.k_norm"),
                rotary=rotary._replace(cos=rotary.cos.to(device), sin=rotary.sin.to(device)),
                window=layer.window,
                o=linear(f"{at}.self_attn", "o"),
                attention_out_norm=None,
                mlp_norm=norm(f"{at}.post_attention_layernorm"),
                gate_up=linear(f"{at}.mlp", "gate", "up"),
                down=linear(f"{at}.mlp", "down"),
                mlp_out_norm=None,
            )
        )
    head: Any = DeviceLinear(weights.get("lm_head.weight", embedding))
    return LlamaModel(
        config=shape,
        embedding=embedding,
        layers=tuple(layers),
        norm=norm("model.norm"),
        lm_head=head,
        cache_dtype=embedding.dtype,
    )


def new_cache(model: LlamaModel, num_blocks: int) -> list[KVCache]:
    """Zeroed pages on the model's device; on a GPU keys lie token by token in memory."""
    config, memory = model.config, model.embedding
    shape = (num_blocks, config.num_kv_heads, BLOCK, config.head_dim)

    def pages() -> KVCache:
        k, v = memory.new_zeros(shape).transpose(2, 3), memory.new_zeros(shape)
        return KVCache(k if memory.is_cuda else k.contiguous(), v)

    return [pages() for _ in model.layers]


def num_blocks_for(num_sequences: int, length: int) -> int:
    """Pages of `num_sequences` sequences of a length."""
    return num_sequences * -(-length // BLOCK)


def batch_of(token_ids: Tensor, first: int, last: int) -> PackedBatch:
    """The tokens first..last-1 of every sequence, each with pages of its own for all of its tokens.

    token_ids: [S, L]. Logits are wanted of the last token of each sequence.
    """
    sequences, length = token_ids.shape
    device, count, width = token_ids.device, last - first, -(-length // BLOCK)
    tables = torch.arange(sequences * width, device=device).view(sequences, width)
    positions = torch.arange(first, last, device=device).repeat(sequences)
    owners = torch.arange(sequences, device=device).repeat_interleave(count)
    slots = tables[owners, positions // BLOCK] * BLOCK + positions % BLOCK
    # The CPU body takes at most 16 tokens of a sequence at a time, a GPU any number.
    step = count if token_ids.is_cuda else 16
    tiles = [
        (sequence, sequence * count + at, min(step, count - at))
        for sequence in range(sequences)
        for at in range(0, count, step)
    ]
    return PackedBatch(
        token_ids=token_ids[:, first:last].flatten(),
        positions=positions,
        slots=slots,
        block_tables=tables,
        tiles=torch.tensor(tiles, device=device),
        sample_rows=torch.arange(1, sequences + 1, device=device) * count - 1,
    )


def captured(step: Callable[[], Tensor]) -> Callable[[], object]:
    """The step as one CUDA graph; its inputs and outputs stay where they are in memory."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
