"""How loops read and write float32, bfloat16 (as uint16) and int8 through one name: arithmetic is always float32."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import cfunc, njit, types
from numba.extending import overload

from streamrunner.kernels.parallel import bits_of_float, float_of_bits

if TYPE_CHECKING:
    from collections.abc import Callable

_SIXTEEN = np.int32(16)
_ONE = np.int32(1)
_HALF_LESS_ONE = np.int32(0x7FFF)
_QUIET_NAN = np.uint16(0x7FC0)


def load(value: Any) -> Any:
    """A stored number as float32."""
    return value


def rounded(value: Any, like: Any) -> Any:
    """A float32 as the kind of number that `like` is; bfloat16 rounds to nearest even."""
    del like
    return value


@overload(load, strict=False)
def _load(value: Any) -> Any:
    if isinstance(value, types.Integer):
        return lambda value: float_of_bits(np.int32(value) << _SIXTEEN)
    return lambda value: value


@overload(rounded, strict=False)
def _rounded(value: Any, like: Any) -> Any:
    if isinstance(like, types.Integer):
        return lambda value, like: _to_bfloat16(value)
    return lambda value, like: value


@njit(inline="always")
def _to_bfloat16(value: Any) -> Any:
    bits = bits_of_float(value)
    nearest = np.uint16((bits + _HALF_LESS_ONE + ((bits >> _SIXTEEN) & _ONE)) >> _SIXTEEN)
    return nearest if value == value else _QUIET_NAN


@functools.cache
def body(function: Callable[[Any], None]) -> Any:
    """Compile a loop body for `parallel.run` when it is first wanted, or take it from numba's cache on disk."""
    return cfunc(types.void(types.CPointer(types.int64)), cache=True, nopython=True)(function)


def body_for(tensor: torch.Tensor, float32: Callable[[Any], None], bfloat16: Callable[[Any], None]) -> Any:
    """The one of two loop bodies that reads or writes this tensor. Raises TypeError as `is_half` does."""
    return body(bfloat16 if is_half(tensor) else float32)


def is_half(tensor: torch.Tensor) -> bool:
    """Whether a tensor is bfloat16; raises TypeError for what the loops cannot read."""
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"a tensor is {tensor.dtype}, it must be float32 or bfloat16")
    return tensor.dtype == torch.bfloat16
