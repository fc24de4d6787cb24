"""The one place a kernel is started from: what every launch must state, and how the gate listens in.

Wrappers of ops compute sizes and constants and call `launch`. On a GPU (or in Triton's interpreter) that runs the
kernel. Inside `recording`, nothing runs: the launch is handed to a listener with meta tensors in place of real ones,
so that the gate compiles exactly what production would, from the same lines of code.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Contraction of a * b + c to one rounding: as in the CPU loops. Triton 3.10 turns its default to off.
FP_FUSION = True

# The most a thread can have. Left to itself, ptxas spills a few to fit one more block on a multiprocessor.
MAX_REGISTERS = 255

# What a body without a GPU under it assumes: the interpreter, which ignores most of it.
_INTERPRETED_CAPABILITY = 80
_INTERPRETED_SMS = 4
_SMS = {80: 108, 90: 132, 100: 148}


class Launch(NamedTuple):
    """One start of a kernel. args: what it gets at run time · constants: its constexprs, by name."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int


class _Recording(NamedTuple):
    listener: Callable[[Launch], None]
    capability: int


_recording: contextvars.ContextVar[_Recording | None] = contextvars.ContextVar("recording", default=None)


@contextlib.contextmanager
def recording(listener: Callable[[Launch], None], capability: int) -> Iterator[None]:
    """Hand launches to the listener instead of running them, as if on a GPU of this capability (80, 90, 100)."""
    token = _recording.set(_Recording(listener, capability))
    try:
        yield
    finally:
        _recording.reset(token)


def launch(
    kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int = 4, num_stages: int = 3, **constants: Any
) -> None:
    """Start a kernel on the current stream; an empty grid is no work and no error."""
    recorder = _recording.get()
    if recorder is not None:
        recorder.listener(Launch(kernel, grid, args, constants, num_warps, num_stages))
    elif all(grid):
        kernel[grid](*args, **constants, **options(num_warps, num_stages))


def options(num_warps: int, num_stages: int) -> dict[str, Any]:
    """What every launch states, and every compilation of the gate."""
    fixed = {"enable_fp_fusion": FP_FUSION, "maxnreg": MAX_REGISTERS}
    return {"num_warps": num_warps, "num_stages": num_stages, **fixed}


def capability(device: torch.device) -> int:
    """Compute capability times ten: 80 is A100, 90 H100 and H200, 100 B200."""
    recorder = _recording.get()
    if recorder is not None:
        return recorder.capability
    return _capability_of(device) if device.type == "cuda" else _INTERPRETED_CAPABILITY


def num_sms(device: torch.device) -> int:
    """Multiprocessors, for grids that are as large as the card."""
    recorder = _recording.get()
    if recorder is not None:
        return _SMS[recorder.capability]
    return _sms_of(device) if device.type == "cuda" else _INTERPRETED_SMS


def half_dtype(device: torch.device) -> torch.dtype:
    """What 8-bit values are multiplied as: bfloat16, but float16 where the interpreter would get it wrong."""
    return torch.bfloat16 if device.type == "cuda" or _recording.get() is not None else torch.float16


def next_power_of_2(value: int) -> int:
    """The size of a block that holds `value` elements."""
    return 1 << max(value - 1, 0).bit_length()


@functools.cache
def _capability_of(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


@functools.cache
def _sms_of(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
