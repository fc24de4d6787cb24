"""Log-probabilities and ranks on the GPU: a program per row reads it twice, for the normaliser and for the ranks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import launch, next_power_of_2

Tensor = torch.Tensor

_BLOCK = 1024
# Numbers compared at once, tokens times block: what eight warps hold in registers.
_COMPARED = 16_384


@triton.jit
def logprobs_of_rows(
    logits, token_ids, logprobs, ranks, row_stride, id_stride, size,
    COUNT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr, RANK_BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < size, other=float("-inf"))
        new_top = tl.maximum(top, x)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        mass = mass * tl.exp(top - base) + tl.exp(x - base)
        top = new_top
    highest = tl.max(top)
    normalizer = tl.log(tl.sum(mass * tl.exp(top - highest))) + highest
    k = tl.arange(0, BLOCK_K)
    token = tl.load(token_ids + row * id_stride + k, mask=k < COUNT, other=0)
    value = tl.load(logits + token, mask=k < COUNT, other=float("inf"))
    above = tl.zeros([BLOCK_K], tl.int32)
    for start in range(0, size, RANK_BLOCK):
        at = start + tl.arange(0, RANK_BLOCK)
        x = tl.load(logits + at, mask=at < size, other=float("-inf"))
        above += tl.sum((x[None, :] > value[:, None]).to(tl.int32), axis=1)
    tl.store(logprobs + row * COUNT + k, value - normalizer, mask=k < COUNT)
    tl.store(ranks + row * COUNT + k, above + 1, mask=k < COUNT)


def logprobs_at(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """See `kernels.logprobs.logprobs_at`."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    token_ids = token_ids if token_ids.stride(1) == 1 else token_ids.contiguous()
    rows, count = token_ids.shape
    logprobs, ranks = logits.new_empty((rows, count)), token_ids.new_empty((rows, count))
    block_k = next_power_of_2(count)
    tensors, strides = (logits, token_ids, logprobs, ranks), (logits.stride(0), token_ids.stride(0))
    constants = {"COUNT": count, "BLOCK_K": block_k, "RANK_BLOCK": max(_COMPARED // block_k, 64)}
    launch(logprobs_of_rows, (rows,), *tensors, *strides, logits.shape[1], **constants, BLOCK=_BLOCK, num_warps=8)
    return logprobs, ranks


def top_logprobs(logits: Tensor, rows: Tensor, token_ids: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `kernels.logprobs.top_logprobs`; which of two equal tokens comes first is torch's choice here."""
    picked = logits[rows]
    ids = torch.cat([token_ids[:, None], picked.topk(count, dim=1).indices], dim=1)
    logprobs, ranks = logprobs_at(picked, ids)
    return ids, logprobs, ranks[:, 0].clone()
