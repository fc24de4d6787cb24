"""Run numba loops on torch's own thread pool.

A second pool would halve both: on two cores, threads of one pool spin while those of the other want to work. torch
ships libgomp, and `GOMP_parallel` runs any C function on its team, so GEMMs and our loops take turns on the same
threads. Where torch was built with another OpenMP runtime, the loop runs on the calling thread alone.

A body receives one array of int64: pointers, sizes and a counter. Its workers take item after item off the counter, so
an item's result never depends on which thread computed it or on what else was in the batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Below this much work (in items) waking the team costs more than it saves.
_MIN_ITEMS = 2

Launch = Callable[[int, int, int, int], None]


@intrinsic
def float_pointer(_typing: Any, address: Any) -> Any:
    """An int64 as a pointer to float32."""
    del address
    return types.CPointer(types.float32)(types.int64), _as_pointer(ir.FloatType())


@intrinsic
def half_pointer(_typing: Any, address: Any) -> Any:
    """An int64 as a pointer to bfloat16, which numba knows as uint16."""
    del address
    return types.CPointer(types.uint16)(types.int64), _as_pointer(ir.IntType(16))


@intrinsic
def byte_pointer(_typing: Any, address: Any) -> Any:
    """An int64 as a pointer to int8."""
    del address
    return types.CPointer(types.int8)(types.int64), _as_pointer(ir.IntType(8))


@intrinsic
def int_pointer(_typing: Any, address: Any) -> Any:
    """An int64 as a pointer to int64."""
    del address
    return types.CPointer(types.int64)(types.int64), _as_pointer(ir.IntType(64))


def _as_pointer(kind: Any) -> Callable[..., Any]:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.PointerType(kind))

    return generate


@intrinsic
def next_item(_typing: Any, counter: Any) -> Any:
    """Take the next item number off a shared counter."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], ir.Constant(ir.IntType(64), 1), "seq_cst")

    del counter
    return types.int64(types.CPointer(types.int64)), generate


@intrinsic
def float_of_bits(_typing: Any, bits: Any) -> Any:
    """The float32 whose bits these are."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    del bits
    return types.float32(types.int32), generate


@intrinsic
def bits_of_float(_typing: Any, value: Any) -> Any:
    """The bits of a float32."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    del value
    return types.int32(types.float32), generate


def run(body: Any, arguments: list[int], num_items: int) -> None:
    """Call a numba cfunc on the team. `arguments` are its int64s behind the counter's address, which comes first."""
    counter = np.zeros(1, np.int64)
    packed = np.array([counter.ctypes.data, num_items, *arguments], np.int64)
    threads = min(torch.get_num_threads(), num_items)
    if threads < _MIN_ITEMS or _GOMP_PARALLEL is None:
        body.ctypes(ctypes.cast(packed.ctypes.data, ctypes.POINTER(ctypes.c_int64)))
    else:
        _GOMP_PARALLEL(body.address, packed.ctypes.data, threads, 0)


def _find_gomp() -> Any:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


_GOMP_PARALLEL = _find_gomp()
