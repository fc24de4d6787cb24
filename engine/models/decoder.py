"""What the engine needs of a model, however it is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from streamrunner.engine.batch import PackedBatch
    from streamrunner.engine.models.cache import KVCache


class DecoderLimits(Protocol):
    """What requests are checked against."""

    @property
    def vocab_size(self) -> int:
        """Tokens go from 0 to below this."""

    @property
    def max_position(self) -> int:
        """Tokens of the longest sequence."""


class DecoderModel(Protocol):
    """Weights, without the cache."""

    @property
    def config(self) -> DecoderLimits:
        """Limits of the model."""

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory of one token's keys and values over all layers."""

    def new_cache(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Empty pages for every layer."""

    def forward(self, batch: PackedBatch, cache: list[KVCache]) -> torch.Tensor:
        """Compute all tokens of the batch; returns float32 logits [rows to sample, V]."""
