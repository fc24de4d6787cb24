"""Sampling on the GPU: filters by search instead of a sort, keyed Gumbel noise, an argmax whose ties go by index.

    find_floors   a program per row: the lowest logit that top-k, top-p and min-p keep, found by its bits
    draw          a program per 8,192 tokens of a row: the best score among the kept ones
    choose        a program per row: the best of those

Floats are ordered like the integers of their bits (negative ones flipped), so "the largest x with at least this many
tokens, or this much probability, at or above it" is a search over 32 bits: four at a time, each pass over the row
counting for 16 candidates at once. Eight passes over a row that lies in L2 replace sorting it.

The noise is `kernels.sampling`'s: same hash, same float64 formula. Its two logarithms are taken only in blocks where
-log(1 - u) >= 1 - u, a bound that is cheap in float32, lets some token beat the best so far.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import launch, next_power_of_2

Tensor = torch.Tensor

_BLOCK = 1024
_CHUNK = 8192
_LOWEST_KEY = tl.constexpr(-(2**31))
_SIGN = tl.constexpr(0x7FFFFFFF)
_MIX_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_SCALE = tl.constexpr(2.0**-32)
_LOG2E = tl.constexpr(1.4426950408889634)
_NO_INDEX = tl.constexpr(2**62)
_NO_TOKEN = tl.constexpr(-1)


@triton.jit
def _key_of(x):
    """Integers in the order of the floats; its own inverse on the bits."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _SIGN)


@triton.jit
def _float_of(key):
    return (key ^ ((key >> 31) & _SIGN)).to(tl.float32, bitcast=True)


@triton.jit
def _largest_key(row, size, top, sharpness, least, target, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """The largest key with at least `target` tokens (or their weight exp2((x - top) * sharpness)) at or above it."""
    low = tl.full([1], _LOWEST_KEY, tl.int32)
    digits = tl.arange(0, 16)
    for place in range(8):
        step = tl.full([1], 1, tl.int32) << (28 - 4 * place)
        pivots = low + digits * step
        sums = tl.zeros([16], tl.float64)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(row + at, mask=at < size, other=float("-inf"))
            key = _key_of(x)
            weight = tl.full([BLOCK], 1.0, tl.float32) if COUNT else tl.exp2((x - top) * sharpness)
            weight = tl.where((at < size) & (key >= least), weight, 0.0)
            reached = key[:, None] >= pivots[None, :]
            sums += tl.sum(tl.where(reached, weight[:, None], 0.0), axis=0).to(tl.float64)
        # Sums only fall from one pivot to the next; the first is what the passes before have found to suffice.
        digit = tl.sum((sums >= target).to(tl.int32)) - 1
        low += tl.maximum(digit, 0) * step
    return tl.max(low)


@triton.jit
def find_floors(logits, settings, floors, row_stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(settings + 4 * row)
    top_k = tl.load(settings + 4 * row + 1).to(tl.int32)
    top_p = tl.load(settings + 4 * row + 2)
    min_p = tl.load(settings + 4 * row + 3)
    has_k = (top_k > 0) & (top_k < size)
    if (temperature == 0) | ((not has_k) & (top_p >= 1) & (min_p <= 0)):
        tl.store(floors + row, float("-inf"))
        return
    logits += row * row_stride
    sharpness = _LOG2E / temperature
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(logits + at, mask=at < size, other=float("-inf")))
    top = tl.max(highest)
    floor = tl.full([1], _LOWEST_KEY, tl.int32)
    if has_k:
        floor = tl.maximum(floor, _largest_key(logits, size, top, sharpness, floor, top_k, BLOCK, True))
    if top_p < 1:
        mass = tl.zeros([1], tl.float64)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(logits + at, mask=at < size, other=float("-inf"))
            kept = (at < size) & (_key_of(x) >= floor)
            mass += tl.sum(tl.where(kept, tl.exp2((x - top) * sharpness), 0.0)).to(tl.float64)
        target = mass * top_p.to(tl.float64)
        floor = tl.maximum(floor, _largest_key(logits, size, top, sharpness, floor, target, BLOCK, False))
    if min_p > 0:
        exact = top.to(tl.float64) + temperature.to(tl.float64) * tl.log(min_p.to(tl.float64))
        key = _key_of(exact.to(tl.float32))
        # A float32 logit is at or above the exact floor when it is at or above the next float32.
        key = tl.where(_float_of(key).to(tl.float64) < exact, key + 1, key)
        floor = tl.maximum(floor, key)
    tl.store(floors + row + tl.arange(0, 1), _float_of(floor))


@triton.jit
def _mixed(value):
    """SplitMix64's finaliser, as in `kernels.sampling`."""
    value = value + _MIX_STEP
    value = (value ^ (value >> 30)) * _MIX_1
    value = (value ^ (value >> 27)) * _MIX_2
    return value ^ (value >> 31)


@triton.jit
def draw(
    logits, settings, keys, floors, scores, tokens, tops, row_stride, size,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(settings + 4 * row)
    floor = tl.load(floors + row)
    key = _mixed(tl.load(keys + 3 * row).to(tl.uint64))
    key = _mixed(key ^ tl.load(keys + 3 * row + 1).to(tl.uint64))
    key = _mixed(key ^ tl.load(keys + 3 * row + 2).to(tl.uint64))
    divisor = tl.where(temperature == 0, 1.0, temperature)
    logits += row * row_stride
    best = tl.full([1], float("-inf"), tl.float64)
    token = tl.full([1], _NO_INDEX, tl.int64)
    top = tl.full([1], float("-inf"), tl.float32)
    nans = tl.zeros([1], tl.int32)
    for start in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, size), BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < size, other=float("-inf"))
        nans += tl.sum((x != x).to(tl.int32))
        top = tl.maximum(top, tl.max(x))
        kept = (at < size) & (x >= floor)
        bits = _mixed(key ^ _mixed(at.to(tl.uint64))) >> 32
        scaled = x / divisor
        left = (4294967295.0 - bits.to(tl.float32)) + 0.5
        bound = tl.where(temperature == 0, 0.0, -tl.log(tl.maximum(left, 0.4) * _SCALE))
        reach = tl.where(kept, scaled + bound + 1e-5 + 1e-6 * tl.abs(scaled), float("-inf"))
        if tl.max(reach).to(tl.float64) >= tl.max(best):
            noise = -tl.log(-tl.log((bits.to(tl.float64) + 0.5) * _SCALE))
            score = x.to(tl.float64) / divisor.to(tl.float64) + tl.where(temperature == 0, 0.0, noise)
            score = tl.where(kept, score, float("-inf"))
            highest = tl.max(score)
            first = tl.min(tl.where(kept & (score == highest), at.to(tl.int64), _NO_INDEX))
            token = tl.where(highest > best, first, token)
            best = tl.maximum(best, highest)
    at = row * CHUNKS + chunk + tl.arange(0, 1)
    tl.store(scores + at, best)
    tl.store(tokens + at, token)
    tl.store(tops + at, tl.where(nans > 0, float("inf"), top))


@triton.jit
def choose(scores, tokens, tops, out, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    score = tl.load(scores + row * CHUNKS + at, mask=at < CHUNKS, other=float("-inf"))
    token = tl.load(tokens + row * CHUNKS + at, mask=at < CHUNKS, other=_NO_INDEX)
    top = tl.max(tl.load(tops + row * CHUNKS + at, mask=at < CHUNKS, other=float("-inf")))
    first = tl.min(tl.where(score == tl.max(score), token, _NO_INDEX))
    # NaN was written as an infinite top: neither, nor a row without any finite logit, has a token.
    tl.store(out + row, tl.where(tl.abs(top) == float("inf"), _NO_TOKEN, first))


def sample(logits: Tensor, settings: Tensor, keys: Tensor) -> Tensor:
    """See `kernels.sampling.sample`. Top-p sums in float32 per block: a token at its very edge may differ there."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    settings, keys = settings.contiguous(), keys.contiguous()
    rows, size = logits.shape
    chunks = triton.cdiv(size, _CHUNK)
    floors = logits.new_empty((rows,))
    scores, tokens = logits.new_empty((rows, chunks), dtype=torch.float64), keys.new_empty((rows, chunks))
    tops, out = logits.new_empty((rows, chunks)), keys.new_empty((rows,))
    launch(find_floors, (rows,), logits, settings, floors, logits.stride(0), size, BLOCK=_BLOCK, num_warps=8)
    arguments = (logits, settings, keys, floors, scores, tokens, tops, logits.stride(0), size)
    launch(draw, (rows, chunks), *arguments, CHUNKS=chunks, CHUNK=_CHUNK, BLOCK=_BLOCK)
    block = next_power_of_2(chunks)
    launch(choose, (rows,), scores, tokens, tops, out, CHUNKS=chunks, BLOCK=block, num_warps=1)
    return out
