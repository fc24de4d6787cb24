"""A step's chunks as packed tensors: no padding, one row per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from streamrunner.kernels.cpu_attention import TILE

if TYPE_CHECKING:
    from streamrunner.engine.scheduler import Chunk

Tensor = torch.Tensor


class PackedBatch(NamedTuple):
    """What a model's forward pass reads. T tokens of S sequences; all int64.

    token_ids, positions, slots: [T] · block_tables: [S, P] · tiles: [I, 3], see `kernels.attention`
    sample_rows: rows whose logits are wanted: one for each chunk that samples, then those that chunks score, in order
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    tiles: Tensor
    sample_rows: Tensor


def pack(chunks: list[Chunk], block_size: int) -> PackedBatch:
    """Lay the chunks one after the other."""
    num_tokens = sum(chunk.num_tokens for chunk in chunks)
    token_ids = np.empty(num_tokens, np.int64)
    positions = np.empty(num_tokens, np.int64)
    slots = np.empty(num_tokens, np.int64)
    tables = np.zeros((len(chunks), max(len(chunk.sequence.blocks) for chunk in chunks)), np.int64)
    tiles: list[tuple[int, int, int]] = []
    sample_rows: list[int] = []
    score_rows: list[int] = []
    row = 0
    for index, (sequence, start, count) in enumerate(chunks):
        end = row + count
        tables[index, : len(sequence.blocks)] = sequence.blocks
        token_ids[row:end] = sequence.token_ids[start : start + count]
        positions[row:end] = np.arange(start, start + count)
        slots[row:end] = tables[index, positions[row:end] // block_size] * block_size + positions[row:end] % block_size
        tiles += [(index, first, min(TILE, end - first)) for first in range(row, end, TILE)]
        if chunks[index].samples:
            sample_rows.append(end - 1)
        score_rows += [row + position - start for position in chunks[index].scored]
        row = end
    arrays = (
        token_ids,
        positions,
        slots,
        tables,
        np.array(tiles, np.int64),
        np.array(sample_rows + score_rows, np.int64),
    )
    return PackedBatch(*(torch.from_numpy(array) for array in arrays))
