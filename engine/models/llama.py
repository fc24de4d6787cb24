"""Decoders of the Llama shape (Llama, Mistral, Qwen2, Qwen3, SmolLM, Phi-3, Gemma): one forward pass, a few switches.

    hidden ─ norm ─ QKV ─ rope, K and V to pages ─ attention ─ O ─ (norm) ─ + ─▶
           ─ norm ─ gate and up ─ silu or gelu, * ─ down ─ (norm) ─ + ─▶ next layer

Everything between the linear layers is computed in float32 and the residual stays so; what goes in and out of them, and
keys and values, are rounded to the weights' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from streamrunner.engine.models.cache import KVCache, bytes_per_token, empty_pages
from streamrunner.kernels.activation import gelu_tanh_and_mul, silu_and_mul
from streamrunner.kernels.attention import paged_attention
from streamrunner.kernels.norm import add_rms_norm, rms_norm
from streamrunner.kernels.rope import rope_and_cache

if TYPE_CHECKING:
    from streamrunner.engine.batch import PackedBatch
    from streamrunner.engine.models.config import ModelConfig
    from streamrunner.engine.models.rope import RotaryTables
    from streamrunner.kernels.linear import Linear

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Weights of one layer; norms [H] float32. Q, K, V and gate, up are merged.

    q_norm, k_norm: [D] or None · attention_out_norm, mlp_out_norm: before the residual add, or None (Gemma)
    window: slots a token sees, 0 for all
    """

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    rotary: RotaryTables
    window: int
    o: Linear
    attention_out_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    mlp_out_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """A loaded model. embedding: [V, H] in the weights' dtype · cache_dtype: of the pages, that dtype or int8."""

    config: ModelConfig
    embedding: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    lm_head: Linear
    cache_dtype: torch.dtype

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory of one token's keys and values over all layers."""
        config = self.config
        return len(self.layers) * bytes_per_token(config.num_kv_heads, config.head_dim, self.cache_dtype)

    def new_cache(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Empty pages for every layer."""
        kv_heads, dim = self.config.num_kv_heads, self.config.head_dim
        return [empty_pages(num_blocks, block_size, kv_heads, dim, self.cache_dtype) for _ in self.layers]

    def forward(self, batch: PackedBatch, cache: list[KVCache]) -> Tensor:
        """Compute all tokens of the batch; returns float32 logits [rows to sample, V]."""
        eps, dtype = self.config.rms_norm_eps, self.embedding.dtype
        hidden = self._embed(batch.token_ids)
        normed = rms_norm(hidden, self.layers[0].input_norm, eps, dtype)
        delta = normed
        for index, (layer, pages) in enumerate(zip(self.layers, cache, strict=True)):
            if index > 0:
                normed = add_rms_norm(hidden, delta, layer.input_norm, eps)
            delta = self._normed(layer.o(self._attention(layer, normed, batch, pages)), layer.attention_out_norm)
            normed = add_rms_norm(hidden, delta, layer.mlp_norm, eps)
            delta = self._normed(layer.down(self._activate(layer.gate_up(normed))), layer.mlp_out_norm)
        return self._logits(hidden, delta, batch.sample_rows)

    def _embed(self, token_ids: Tensor) -> Tensor:
        """[T, H] float32. The scale is rounded to the weights' dtype, as it was in training."""
        hidden = self.embedding[token_ids].float()
        scale = self.config.embedding_scale
        return hidden if scale == 1.0 else hidden * torch.tensor(scale).to(self.embedding.dtype).float()

    def _normed(self, out: Tensor, weight: Tensor | None) -> Tensor:
        return out if weight is None else rms_norm(out.float(), weight, self.config.rms_norm_eps, out.dtype)

    def _activate(self, gate_up: Tensor) -> Tensor:
        return silu_and_mul(gate_up) if self.config.activation == "silu" else gelu_tanh_and_mul(gate_up)

    def _attention(self, layer: LlamaLayer, normed: Tensor, batch: PackedBatch, pages: KVCache) -> Tensor:
        """[T, H * D] float32, before the output projection."""
        k, v, positions = pages.k, pages.v, batch.positions
        q = rope_and_cache(
            layer.qkv(normed), *layer.rotary, positions, batch.slots, k, v, pages.k_scale, pages.v_scale,
            q_norm=layer.q_norm, k_norm=layer.k_norm, eps=self.config.rms_norm_eps,
        )  # fmt: skip
        return paged_attention(
            q, k, v, batch.block_tables, positions, batch.tiles, self.config.attention_scale,
            layer.window, self.config.attention_soft_cap, pages.k_scale, pages.v_scale,
        ).flatten(1)  # fmt: skip

    def _logits(self, hidden: Tensor, delta: Tensor, rows: Tensor) -> Tensor:
        if rows.shape[0] == 0:
            return hidden.new_empty((0, self.config.vocab_size))
        logits = self.lm_head(add_rms_norm(hidden[rows], delta[rows], self.norm, self.config.rms_norm_eps)).float()
        cap = self.config.logit_soft_cap
        return logits if cap == 0.0 else torch.tanh(logits / cap) * cap
