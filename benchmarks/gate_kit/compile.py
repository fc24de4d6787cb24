"""Compile a unit without a GPU and read what it needs: its ptxas comes with Triton's wheel."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from streamrunner.kernels.gpu.launch import options

if TYPE_CHECKING:
    from gate_kit.units import Unit

_WARP = 32
_KIB = 1024


class Limits(NamedTuple):
    """Of one multiprocessor. shared_per_block: what one block may ask for, bytes."""

    shared_per_block: int
    shared: int
    registers: int = 65_536
    warps: int = 64
    blocks: int = 32


LIMITS = {
    80: Limits(163 * _KIB, 164 * _KIB),
    90: Limits(227 * _KIB, 228 * _KIB),
    100: Limits(227 * _KIB, 228 * _KIB),
}
_TENSOR_MEMORY_COLUMNS = 512


class Usage(NamedTuple):
    """What a compiled kernel needs. registers: per thread · shared, spill: bytes · occupancy: share of the warps."""

    registers: int
    shared: int
    spill: int
    occupancy: float
    problem: str


def compile_unit(unit: Unit) -> Usage:
    """Compile; what the compiler says on failing becomes the usage's problem."""
    try:
        compiled = _compile(unit)
    except Exception as error:  # noqa: BLE001 - whatever Triton raises is the finding
        lines = str(error).strip().splitlines() or [""]
        return Usage(0, 0, 0, 0.0, f"does not compile: {type(error).__name__}: {lines[-1][:200]}")
    registers, spill = _resources(compiled.log)
    metadata = compiled.kernel.metadata
    shared, columns = int(metadata.shared), int(getattr(metadata, "tmem_size", 0) or 0)
    problem = _problem(unit, shared, spill, columns)
    return Usage(
        registers, shared, spill, occupancy(LIMITS[unit.capability], registers, shared, unit.num_warps), problem
    )


class _Compiled(NamedTuple):
    kernel: Any
    log: str


def _compile(unit: Unit) -> _Compiled:
    module, name = unit.kernel
    kernel = getattr(importlib.import_module(module), name)
    attrs = {(index,): [["tt.divisibility", 16]] for index in unit.aligned}
    source = ASTSource(kernel, dict(unit.signature), dict(unit.constants), attrs)
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        compiled = triton.compile(
            source, target=GPUTarget("cuda", unit.capability, _WARP), options=options(unit.num_warps, unit.num_stages)
        )
    return _Compiled(compiled, log.getvalue())


def _resources(log: str) -> tuple[int, int]:
    """Registers per thread and spilled bytes from what ptxas -v prints; a stack frame alone is no spill."""
    [registers] = re.findall(r"Used (\d+) registers", log)
    return int(registers), sum(int(size) for size in re.findall(r"(\d+) bytes spill", log))


def _problem(unit: Unit, shared: int, spill: int, columns: int) -> str:
    limit = LIMITS[unit.capability].shared_per_block
    if spill:
        return f"spills {spill} bytes per thread"
    if shared > limit:
        return f"needs {shared} bytes of shared memory, the target has {limit}"
    if columns > _TENSOR_MEMORY_COLUMNS:
        return f"needs {columns} columns of tensor memory, the target has {_TENSOR_MEMORY_COLUMNS}"
    return ""


def occupancy(limits: Limits, registers: int, shared: int, num_warps: int) -> float:
    """Share of a multiprocessor's warps that can be resident; registers are given out in lots of 256 per warp."""
    per_warp = -(-max(registers, 1) * _WARP // 256) * 256
    # Each of the four schedulers has a quarter of the registers.
    by_registers = limits.registers // 4 // per_warp * 4 // num_warps
    by_shared = limits.shared // (shared + _KIB)
    blocks = min(by_registers, by_shared, limits.warps // num_warps, limits.blocks)
    return blocks * num_warps / limits.warps
