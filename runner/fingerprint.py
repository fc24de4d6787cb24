"""What decides the bits of a result besides the job itself.

Rows continued under another fingerprint may differ in rounding. Made without importing torch, so that a worker can join
before its model loads.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrunner.runner.spec import EngineSpec

_ISA_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")


def numerics_fingerprint(engine: EngineSpec) -> dict[str, Any]:
    """ISA, library versions, dtypes as asked, threads."""
    return {
        "isa": instruction_set(),
        "machine": platform.machine(),
        "torch": _version("torch"),
        "numba": _version("numba"),
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "quantization": engine.quantization,
        "device": engine.device,
        "threads": int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1),
    }


def instruction_set() -> str:
    """The widest vector extension that matters here, or `baseline`."""
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8").split("flags", 1)[1].split("\n", 1)[0].split()
    except (OSError, IndexError):
        return platform.processor() or "unknown"
    return next((flag for flag in _ISA_FLAGS if flag in flags), "baseline")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
