"""Gated activations of the feed-forward layers."""

from __future__ import annotations

from typing import Any

import torch
from numba import carray, njit

from streamrunner.kernels import storage
from streamrunner.kernels.llvm_vectors import LANES
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import float_pointer, half_pointer, int_pointer, next_item, run
from streamrunner.kernels.row_loops import gelu_tanh_gate, silu_gate

Tensor = torch.Tensor


@njit(nogil=True)
def _run(a: Any, source: Any, out: Any) -> None:
    counter, rows, size = int_pointer(a[0]), a[4], a[5]
    while True:
        row = next_item(counter)
        if row >= rows:
            return
        if a[6] == 0:
            silu_gate(source, 2 * row * size, (2 * row + 1) * size, size, out, row * size)
        else:
            gelu_tanh_gate(source, 2 * row * size, (2 * row + 1) * size, size, out, row * size)


def _float32(packed: Any) -> None:
    """[counter, items, gate_up, out | R, I, 0 for silu or 1 for gelu]."""
    a = carray(packed, (7,))
    _run(a, carray(float_pointer(a[2]), (2 * a[4] * a[5],)), carray(float_pointer(a[3]), (a[4] * a[5],)))


def _bfloat16(packed: Any) -> None:
    a = carray(packed, (7,))
    _run(a, carray(half_pointer(a[2]), (2 * a[4] * a[5],)), carray(half_pointer(a[3]), (a[4] * a[5],)))


def _gated(gate_up: Tensor, kind: int) -> Tensor:
    gate_up = gate_up.contiguous()
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    if size % LANES:
        raise ValueError(f"a gate has {size} columns, they must be a multiple of {LANES}")
    out = gate_up.new_empty((rows, size))
    run(storage.body_for(out, _float32, _bfloat16), [gate_up.data_ptr(), out.data_ptr(), rows, size, kind], rows)
    return out


@cpu_op()
def silu_and_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's product: silu(gate) * up (arXiv 2002.05202).

    gate_up: [R, 2 * I] float32 or bfloat16, gate first, I a multiple of 16. Returns [R, I] of its dtype; the
    arithmetic is float32.
    """
    return _gated(gate_up, 0)


@cpu_op()
def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """GeGLU's product with gelu's tanh form, as in Gemma: gelu(gate) * up (arXiv 2002.05202).

    gate_up: [R, 2 * I] float32 or bfloat16, gate first, I a multiple of 16. Returns [R, I] of its dtype; the
    arithmetic is float32.
    """
    return _gated(gate_up, 1)


@fake_of("silu_and_mul")
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


@fake_of("gelu_tanh_and_mul")
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
