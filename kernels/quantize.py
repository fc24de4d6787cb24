"""Rows as bytes with one scale each, and back: what goes in and comes out of an int8 product."""

from __future__ import annotations

from typing import Any

import torch
from numba import carray, njit, types

from streamrunner.kernels import storage
from streamrunner.kernels.llvm_vectors import LANES
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import byte_pointer, float_pointer, half_pointer, int_pointer, next_item, run
from streamrunner.kernels.row_loops import quantise, scale_row

Tensor = torch.Tensor


@njit(nogil=True)
def _quantise_rows(a: Any, source: Any) -> None:
    rows, size = a[5], a[6]
    out = carray(byte_pointer(a[3]), (rows * size,))
    scales = carray(float_pointer(a[4]), (rows,))
    while True:
        row = next_item(int_pointer(a[0]))
        if row >= rows:
            return
        scales[row] = quantise(source, row * size, size, out)


def _quantise_float32(packed: Any) -> None:
    """[counter, items, x, bytes, scales | R, H]."""
    a = carray(packed, (7,))
    _quantise_rows(a, carray(float_pointer(a[2]), (a[5] * a[6],)))


def _quantise_bfloat16(packed: Any) -> None:
    a = carray(packed, (7,))
    _quantise_rows(a, carray(half_pointer(a[2]), (a[5] * a[6],)))


@njit(nogil=True)
def _scale(a: Any, out: Any) -> None:
    rows, size = a[6], a[7]
    source, scales = carray(float_pointer(a[2]), (rows * size,)), carray(float_pointer(a[3]), (rows,))
    has_bias = a[4] != 0
    bias = carray(float_pointer(a[4]), (size if has_bias else 0,))
    while True:
        row = next_item(int_pointer(a[0]))
        if row >= rows:
            return
        scale_row(source, row * size, size, scales[row], bias, types.boolean(has_bias), out)


def _scale_float32(packed: Any) -> None:
    """[counter, items, x, scales, bias, out | R, H]; a bias of address 0 is none."""
    a = carray(packed, (8,))
    _scale(a, carray(float_pointer(a[5]), (a[6] * a[7],)))


def _scale_bfloat16(packed: Any) -> None:
    a = carray(packed, (8,))
    _scale(a, carray(half_pointer(a[5]), (a[6] * a[7],)))


@cpu_op()
def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row as bytes around 128, with the scale that brings it back: x = (byte - 128) * scale.

    x: [R, H] float32 or bfloat16, H a multiple of 16. Returns uint8 [R, H] and float32 [R]; the largest absolute number
    of a row becomes 127 from the middle. A row with NaN has NaN as its scale.
    """
    x = x.contiguous()
    _check(x.shape[1])
    out = torch.empty(x.shape, dtype=torch.uint8)
    scales = torch.empty(x.shape[0])
    body = storage.body_for(x, _quantise_float32, _quantise_bfloat16)
    run(body, [x.data_ptr(), out.data_ptr(), scales.data_ptr(), *x.shape], x.shape[0])
    return out, scales


@fake_of("quantize_rows")
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.uint8), x.new_empty((x.shape[0],), dtype=torch.float32)


@cpu_op()
def scale_rows(x: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x * scales[:, None] + bias, rounded once.

    x: [R, H] float32, H a multiple of 16 · scales: [R] float32 · bias: [H] float32. Returns [R, H] of dtype.
    """
    x = x.contiguous()
    _check(x.shape[1])
    out = torch.empty(x.shape, dtype=dtype)
    pointers = [0 if one is None else one.data_ptr() for one in (x, scales, bias, out)]
    run(storage.body_for(out, _scale_float32, _scale_bfloat16), [*pointers, *x.shape], x.shape[0])
    return out


@fake_of("scale_rows")
def _(x: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    del scales, bias
    return x.new_empty(x.shape, dtype=dtype)


def _check(size: int) -> None:
    if size % LANES:
        raise ValueError(f"a row has {size} numbers, they must be a multiple of {LANES}")
