"""RMSNorm with the residual add folded in (arXiv 1910.07467)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from streamrunner.kernels.cpu_math import FAST
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import float_pointer, int_pointer, next_item, run

Tensor = torch.Tensor

# Partial sums per row: wide enough for two vectors, always added up in the same order.
_LANES = 16


@njit(fastmath=FAST, nogil=True)
def _norm_rows(x: Any, weight: Any, out: Any, eps: Any, counter: Any) -> None:
    lanes = np.empty(_LANES, np.float32)
    size = x.shape[1]
    whole = size - size % _LANES
    while True:
        row = next_item(counter)
        if row >= x.shape[0]:
            return
        for j in range(_LANES):
            lanes[j] = np.float32(0.0)
        for i in range(0, whole, _LANES):
            for j in range(_LANES):
                lanes[j] = lanes[j] + x[row, i + j] * x[row, i + j]
        total = np.float32(0.0)
        for j in range(_LANES):
            total = total + lanes[j]
        for i in range(whole, size):
            total = total + x[row, i] * x[row, i]
        inverse = np.float32(1.0) / np.sqrt(total / np.float32(size) + eps)
        for i in range(size):
            out[row, i] = x[row, i] * inverse * weight[i]


@cfunc(types.void(types.CPointer(types.int64)), cache=True, nopython=True)
def _norm_body(packed: Any) -> None:
    a = carray(packed, (8,))
    rows, size = a[6], a[7]
    x = carray(float_pointer(a[2]), (rows, size))
    weight = carray(float_pointer(a[3]), (size,))
    out = carray(float_pointer(a[4]), (rows, size))
    _norm_rows(x, weight, out, carray(float_pointer(a[5]), (1,))[0], int_pointer(a[0]))


@cpu_op()
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to unit root mean square.

    x: [R, H] float32 · weight: [H] float32. Returns [R, H]; sums in float32, in one order for every row.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    eps_box = np.array([eps], np.float32)
    run(_norm_body, [x.data_ptr(), weight.data_ptr(), out.data_ptr(), eps_box.ctypes.data, *x.shape], x.shape[0])
    return out


@fake_of("rms_norm")
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    del weight, eps
    return x.new_empty(x.shape)
