"""From a launch to what Triton would compile for it: types, constants and alignment as its own launcher sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from streamrunner.kernels.gpu.launch import Launch, recording

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gate_kit.calls import Call

_POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_ALIGNED = 16
_INT32 = 2**31


class Unit(NamedTuple):
    """One compilation, picklable. kernel: module and name · attrs: (argument index, ...) whose value 16 divides."""

    kernel: tuple[str, str]
    capability: int
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]
    num_warps: int
    num_stages: int


class Work(NamedTuple):
    """A unit and the tuples that need it."""

    unit: Unit
    calls: list[str]


def units_of(calls: Iterable[Call], capabilities: Iterable[int]) -> list[Work]:
    """What all calls compile on all targets, each unit once."""
    work: dict[Unit, Work] = {}
    calls = list(calls)
    for capability in capabilities:
        for call in calls:
            if call.needs <= capability:
                for unit in _units_of_call(call, capability):
                    work.setdefault(unit, Work(unit, [])).calls.append(call.name)
    return list(work.values())


def _units_of_call(call: Call, capability: int) -> list[Unit]:
    launches: list[Launch] = []
    with recording(launches.append, capability):
        call.run()
    return [unit_of(launch, capability) for launch in launches]


def unit_of(launch: Launch, capability: int) -> Unit:
    """Type, fold and align arguments by Triton's rules: 1 and None become constants, multiples of 16 are marked."""
    names = launch.kernel.arg_names
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: list[int] = []
    plain = {param.name for param in launch.kernel.params if param.do_not_specialize}
    for index, (name, value) in enumerate(zip(names, launch.args, strict=False)):
        special = name not in plain
        signature[name] = _type_of(value, special)
        if signature[name] == "constexpr":
            constants[name] = value
        elif special and _is_aligned(value):
            aligned.append(index)
    for name, value in launch.constants.items():
        signature[name], constants[name] = "constexpr", value
    missing = set(names) - set(signature)
    if missing:
        raise ValueError(f"{launch.kernel.__name__} is launched without {sorted(missing)}")
    ordered = tuple((name, signature[name]) for name in names)
    kernel = (launch.kernel.fn.__module__, launch.kernel.fn.__name__)
    fixed = tuple((name, constants[name]) for name in names if name in constants)
    return Unit(kernel, capability, ordered, fixed, tuple(aligned), launch.num_warps, launch.num_stages)


def _type_of(value: object, special: bool) -> str:
    if value is None or (special and isinstance(value, int) and value == 1):
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        return "i32" if -_INT32 <= value < _INT32 else "i64"
    raise TypeError(f"a kernel cannot take {value!r}")


def _is_aligned(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        # The allocator aligns to 512 bytes; a view may begin anywhere.
        return value.storage_offset() * value.itemsize % _ALIGNED == 0
    return isinstance(value, int) and value % _ALIGNED == 0
