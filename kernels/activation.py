"""Gated activations of the feed-forward layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from streamrunner.kernels.cpu_math import FAST, exp_nonpositive
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import float_pointer, int_pointer, next_item, run

Tensor = torch.Tensor

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


@njit(fastmath=FAST, nogil=True)
def _silu_rows(gate_up: Any, out: Any, counter: Any) -> None:
    size = out.shape[1]
    while True:
        row = next_item(counter)
        if row >= out.shape[0]:
            return
        for i in range(size):
            gate = gate_up[row, i]
            # sigmoid from exp of a non-positive number on both sides: exact to an ulp and never an overflow.
            e = exp_nonpositive(-abs(gate))
            sigmoid = (_ONE if gate >= _ZERO else e) / (_ONE + e)
            out[row, i] = gate * sigmoid * gate_up[row, size + i]


@cfunc(types.void(types.CPointer(types.int64)), cache=True, nopython=True)
def _silu_body(packed: Any) -> None:
    a = carray(packed, (6,))
    rows, size = a[4], a[5]
    gate_up = carray(float_pointer(a[2]), (rows, 2 * size))
    _silu_rows(gate_up, carray(float_pointer(a[3]), (rows, size)), int_pointer(a[0]))


@cpu_op()
def silu_and_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's product: silu(gate) * up (arXiv 2002.05202).

    gate_up: [R, 2 * I] float32, gate first. Returns [R, I].
    """
    gate_up = gate_up.contiguous()
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, size))
    run(_silu_body, [gate_up.data_ptr(), out.data_ptr(), rows, size], rows)
    return out


@fake_of("silu_and_mul")
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
