"""RMSNorm, with or without the residual add before it (arXiv 1910.07467)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, njit

from streamrunner.kernels import storage
from streamrunner.kernels.cpu_math import FAST
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import float_pointer, half_pointer, int_pointer, next_item, run
from streamrunner.kernels.storage import load, rounded

Tensor = torch.Tensor

# Partial sums per row: wide enough for two vectors, always added up in the same order.
NUM_LANES = 16


@njit(fastmath=FAST, nogil=True)
def norm_row(x: Any, weight: Any, out: Any, eps: Any, lanes: Any) -> None:
    """One row, for other loops; `lanes` is room for NUMNUM_LANES float32, `out` may be x."""
    size = x.shape[0]
    whole = size - size % NUM_LANES
    for j in range(NUM_LANES):
        lanes[j] = np.float32(0.0)
    for i in range(0, whole, NUM_LANES):
        for j in range(NUM_LANES):
            lanes[j] = lanes[j] + x[i + j] * x[i + j]
    total = np.float32(0.0)
    for j in range(NUM_LANES):
        total = total + lanes[j]
    for i in range(whole, size):
        total = total + x[i] * x[i]
    inverse = np.float32(1.0) / np.sqrt(total / np.float32(size) + eps)
    for i in range(size):
        out[i] = rounded(x[i] * inverse * weight[i], out[i])


@njit(fastmath=FAST, nogil=True)
def _norm_rows(x: Any, delta: Any, weight: Any, out: Any, eps: Any, counter: Any) -> None:
    lanes = np.empty(NUM_LANES, np.float32)
    while True:
        row = next_item(counter)
        if row >= x.shape[0]:
            return
        if delta.shape[0] > 0:
            for i in range(x.shape[1]):
                x[row, i] = x[row, i] + load(delta[row, i])
        norm_row(x[row], weight, out[row], eps, lanes)


@njit(nogil=True)
def _run(a: Any, delta: Any, out: Any) -> None:
    rows, size = a[7], a[8]
    x, weight = carray(float_pointer(a[2]), (rows, size)), carray(float_pointer(a[4]), (size,))
    _norm_rows(x, delta, weight, out, carray(float_pointer(a[6]), (1,))[0], int_pointer(a[0]))


def _float32(packed: Any) -> None:
    """[counter, items, x, delta, weight, out, eps | R, H]; a delta of address 0 is none."""
    a = carray(packed, (9,))
    delta = carray(float_pointer(a[3]), (a[7] if a[3] != 0 else 0, a[8]))
    _run(a, delta, carray(float_pointer(a[5]), (a[7], a[8])))


def _bfloat16(packed: Any) -> None:
    a = carray(packed, (9,))
    delta = carray(half_pointer(a[3]), (a[7] if a[3] != 0 else 0, a[8]))
    _run(a, delta, carray(half_pointer(a[5]), (a[7], a[8])))


def _norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    eps_box = np.array([eps], np.float32)
    tensors = [0 if one is None else one.data_ptr() for one in (x, delta, weight, out)]
    run(storage.body_for(out, _float32, _bfloat16), [*tensors, eps_box.ctypes.data, *x.shape], x.shape[0])
    return out


@cpu_op()
def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale each row to unit root mean square.

    x: [R, H] float32 · weight: [H] float32. Returns [R, H] of dtype (float32 or bfloat16); sums in float32, in one
    order for every row.
    """
    return _norm(x.contiguous(), None, weight, eps, dtype)


@fake_of("rms_norm")
def _(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype = torch.float32) -> Tensor:
    del weight, eps
    return x.new_empty(x.shape, dtype=dtype)


@cpu_op(mutates_args=("residual",))
def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += delta, in place; then `rms_norm` of it in one pass.

    residual: [R, H] float32, contiguous · delta: [R, H] float32 or bfloat16 · weight: [H] float32
    Returns [R, H] of delta's dtype.
    """
    return _norm(residual, delta.contiguous(), weight, eps, delta.dtype)


@fake_of("add_rms_norm")
def _(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    del residual, weight, eps
    return delta.new_empty(delta.shape)
