"""Sampling whose noise is a function of (seed, choice, position, token) alone: no generator, no state, no batch.

    token = argmax over kept tokens of  logit / temperature + g(seed, choice, position, token)        (Gumbel-max)

g = -log(-log(u)), u a 32-bit counter hash. Filters (top-k, then top-p, then min-p) only lower the set of kept tokens,
so they never change anybody's noise; ties go to the lowest index. No token can win that lies more than the largest
possible g below the best so far, so almost none is hashed: the pass over the vocabulary is a comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import float_pointer, int_pointer, next_item, run

Tensor = torch.Tensor

# Row had NaN or no finite logit at all.
NO_TOKEN = -1

# u >= 2**-33 on either side, so g <= -log(-log(1 - 2**-33)) = 22.87.
_LARGEST_NOISE = 23.0
_SCALE = 2.0**-32

_MIX_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@njit(nogil=True, inline="always")
def _mix(value: Any) -> Any:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    value = value + _MIX_STEP
    value = (value ^ (value >> _30)) * _MIX_1
    value = (value ^ (value >> _27)) * _MIX_2
    return value ^ (value >> _31)


@njit(nogil=True, inline="always")
def _noise(key: Any, token: int) -> Any:
    bits = _mix(key ^ _mix(np.uint64(token))) >> _32
    return -np.log(-np.log((np.float64(bits) + 0.5) * _SCALE))


@njit(nogil=True)
def _top_k_floor(logits: Any, top_k: int) -> Any:
    kth = logits.size - top_k
    return np.partition(logits, kth)[kth]


@njit(nogil=True)
def _top_p_floor(logits: Any, floor: float, top: float, temperature: float, top_p: float) -> Any:
    """The lowest logit of the smallest set of likeliest tokens (at or above floor) with at least top_p of the mass."""
    mass = 0.0
    for token in range(logits.size):
        if logits[token] >= floor:
            mass += np.exp((logits[token] - top) / temperature)
    # Few tokens carry the mass: sort only those near the top, and look further down as long as they do not suffice.
    depth = 4.0 * temperature
    while True:
        near = np.sort(logits[logits >= max(floor, top - depth)])[::-1]
        running = 0.0
        for index in range(near.size):
            running += np.exp((near[index] - top) / temperature)
            if running >= top_p * mass:
                return near[index]
        if top - depth <= floor or near.size == logits.size:
            return floor
        depth *= 2.0


@njit(nogil=True)
def _likeliest(logits: Any) -> Any:
    """The lowest index of the largest logit; NO_TOKEN for a row with NaN or nothing finite on top."""
    best, top = NO_TOKEN, -np.inf
    for token in range(logits.size):
        if np.isnan(logits[token]):
            return NO_TOKEN
        if logits[token] > top:
            best, top = token, logits[token]
    return NO_TOKEN if np.isinf(top) else best


@njit(nogil=True)
def _kept_floor(logits: Any, top: float, temperature: float, top_k: int, top_p: float, min_p: float) -> float:
    """The lowest logit that all filters keep; ties at the edge are kept."""
    floor = -np.inf
    if 0 < top_k < logits.size:
        floor = _top_k_floor(logits, top_k)
    if top_p < 1.0:
        floor = max(floor, _top_p_floor(logits, floor, top, temperature, top_p))
    if min_p > 0.0:
        floor = max(floor, top + temperature * np.log(min_p))
    return floor


@njit(nogil=True)
def _sample_row(logits: Any, temperature: float, top_k: int, top_p: float, min_p: float, key: Any) -> Any:
    best = _likeliest(logits)
    if temperature == 0.0 or best == NO_TOKEN:
        return best
    floor = _kept_floor(logits, np.float64(logits[best]), temperature, top_k, top_p, min_p)
    score = np.float64(logits[best]) / temperature + _noise(key, best)
    for token in range(logits.size):
        scaled = np.float64(logits[token]) / temperature
        if logits[token] >= floor and scaled + _LARGEST_NOISE >= score:
            candidate = scaled + _noise(key, token)
            if candidate > score or (candidate == score and token < best):
                best, score = token, candidate
    return best


@cfunc(types.void(types.CPointer(types.int64)), cache=True, nopython=True)
def _sample_body(packed: Any) -> None:
    """[counter, rows, logits, settings, keys, out | R, V]."""
    a = carray(packed, (8,))
    rows, vocab = a[6], a[7]
    logits = carray(float_pointer(a[2]), (rows, vocab))
    settings = carray(float_pointer(a[3]), (rows, 4))
    keys, out = carray(int_pointer(a[4]), (rows, 3)), carray(int_pointer(a[5]), (rows,))
    while True:
        row = next_item(int_pointer(a[0]))
        if row >= rows:
            return
        key = _mix(_mix(_mix(np.uint64(keys[row, 0])) ^ np.uint64(keys[row, 1])) ^ np.uint64(keys[row, 2]))
        one = settings[row]
        out[row] = _sample_row(
            logits[row], np.float64(one[0]), np.int64(one[1]), np.float64(one[2]), np.float64(one[3]), key
        )


@cpu_op()
def sample(logits: Tensor, settings: Tensor, keys: Tensor) -> Tensor:
    """Draw one token per row.

    logits: [R, V] float32 · settings: [R, 4] float32, (temperature, top_k, top_p, min_p); temperature 0 is argmax,
    top_k 0 keeps all, top_p 1 and min_p 0 likewise · keys: [R, 3] int64, (seed, choice, position)
    Returns [R] int64; NO_TOKEN where a row has NaN or nothing finite.
    """
    logits, settings, keys = logits.contiguous(), settings.contiguous(), keys.contiguous()
    out = keys.new_empty((logits.shape[0],))
    pointers = [tensor.data_ptr() for tensor in (logits, settings, keys, out)]
    run(_sample_body, [*pointers, *logits.shape], logits.shape[0])
    return out


@fake_of("sample")
def _(logits: Tensor, settings: Tensor, keys: Tensor) -> Tensor:
    del settings
    return keys.new_empty((logits.shape[0],))
