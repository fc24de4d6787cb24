"""The Llama family: Llama, Mistral, Qwen2, Qwen3, SmolLM: one forward pass, told apart by a few switches.

    hidden ─ norm ─ QKV ─ rope, K and V to pages ─ attention ─ O ─ + ─ norm ─ gate and up ─ silu * ─ down ─ + ─▶

Everything between the linear layers is float32; only their inputs and outputs are rounded to the weights' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from streamrunner.kernels.activation import silu_and_mul
from streamrunner.kernels.attention import paged_attention
from streamrunner.kernels.norm import rms_norm
from streamrunner.kernels.rope import rope_and_cache

if TYPE_CHECKING:
    from streamrunner.engine.batch import PackedBatch
    from streamrunner.engine.models.config import ModelConfig
    from streamrunner.kernels.linear import PackedLinear

Tensor = torch.Tensor


class KVCache(NamedTuple):
    """One layer's pages. k: [N, KV, D, B] · v: [N, KV, B, D], float32."""

    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Weights of one layer; norms [H] float32. Q, K, V and gate, up are merged. q_norm, k_norm: [D] or None (Qwen3)."""

    input_norm: Tensor
    qkv: PackedLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: PackedLinear
    post_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """A loaded model. embedding: [V, H] in the weights' dtype · cos, sin: [max position, D / 2] float32."""

    config: ModelConfig
    embedding: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    lm_head: PackedLinear
    cos: Tensor
    sin: Tensor

    def new_cache(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Empty pages for every layer."""
        kv_heads, dim = self.config.num_kv_heads, self.config.head_dim
        keys, values = (num_blocks, kv_heads, dim, block_size), (num_blocks, kv_heads, block_size, dim)
        return [KVCache(_lazy_zeros(keys), _lazy_zeros(values)) for _ in self.layers]

    def forward(self, batch: PackedBatch, cache: list[KVCache]) -> Tensor:
        """Compute all tokens of the batch; returns float32 logits [rows to sample, V]."""
        hidden = self.embedding[batch.token_ids].float()
        for layer, pages in zip(self.layers, cache, strict=True):
            hidden = self._layer(layer, hidden, batch, pages)
        wanted = hidden[batch.sample_rows]
        if wanted.shape[0] == 0:
            return hidden.new_empty((0, self.config.vocab_size))
        return self.lm_head(rms_norm(wanted, self.norm, self.config.rms_norm_eps))

    def _layer(self, layer: LlamaLayer, hidden: Tensor, batch: PackedBatch, pages: KVCache) -> Tensor:
        eps = self.config.rms_norm_eps
        qkv = layer.qkv(rms_norm(hidden, layer.input_norm, eps))
        if layer.q_norm is not None and layer.k_norm is not None:
            qkv = self._norm_heads(qkv, layer.q_norm, layer.k_norm)
        q = rope_and_cache(qkv, self.cos, self.sin, batch.positions, batch.slots, pages.k, pages.v)
        scale = self.config.head_dim**-0.5
        attended = paged_attention(q, pages.k, pages.v, batch.block_tables, batch.positions, batch.tiles, scale)
        hidden = hidden + layer.o(attended.flatten(1))
        return hidden + layer.down(silu_and_mul(layer.gate_up(rms_norm(hidden, layer.post_norm, eps))))

    def _norm_heads(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Qwen3 normalises every head of Q and K before the rotation."""
        config, tokens = self.config, qkv.shape[0]
        heads = qkv.view(tokens, -1, config.head_dim)
        q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        q = rms_norm(q.reshape(-1, config.head_dim), q_norm, config.rms_norm_eps).view(tokens, -1)
        k = rms_norm(k.reshape(-1, config.head_dim), k_norm, config.rms_norm_eps).view(tokens, -1)
        return torch.cat((q, k, v.reshape(tokens, -1)), dim=1)


def _lazy_zeros(shape: tuple[int, ...]) -> Tensor:
    """Zeros that take no memory until they are written: torch would touch 2 GiB at every start (1.3 s here)."""
    return torch.from_numpy(np.zeros(shape, np.float32))
