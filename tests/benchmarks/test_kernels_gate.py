from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed here", allow_module_level=True)

from gate_kit.calls import Call, calls, empty
from gate_kit.compile import LIMITS, occupancy
from gate_kit.units import unit_of, units_of
from streamrunner.kernels.gpu.launch import Launch, recording
from streamrunner.kernels.gpu.norm import rms_norm

GATE = Path(__file__).resolve().parents[2] / "benchmarks" / "kernels_gate.py"


def run_gate(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    return subprocess.run(
        [sys.executable, str(GATE), "--jobs", "1", *arguments], env=environment, capture_output=True, text=True
    )


def launch_of(*args: object, names: list[str], plain: tuple[str, ...] = (), **constants: object) -> Launch:
    params = [SimpleNamespace(name=name, do_not_specialize=name in plain) for name in names]
    kernel = SimpleNamespace(arg_names=names, params=params, fn=run_gate, __name__="kernel")
    return Launch(kernel, (1,), args, constants, 4, 3)


def test_arguments_are_typed_folded_and_aligned_as_triton_does() -> None:
    whole, names = empty(4, 32), ["a", "b", "c", "d", "e", "f", "g", "N"]
    launch = launch_of(whole, whole[:, 3:], 1, 48, 2**40, None, 1.5, names=names, N=7)
    unit = unit_of(launch, 90)
    assert [kind for _, kind in unit.signature] == [
        "*bf16", "*bf16", "constexpr", "i32", "i64", "constexpr", "fp32", "constexpr"
    ]  # fmt: skip
    assert dict(unit.constants) == {"c": 1, "f": None, "N": 7}
    # 3 bfloat16 are 6 bytes: such a view does not begin at a multiple of 16.
    assert unit.aligned == (0, 3, 4)


def test_signatures_and_alignment_are_those_of_tritons_own_launcher() -> None:
    """By the function that Triton makes for every launch, over one call of each kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(GPUTarget("cuda", 90, 32))
    seen: dict[str, Launch] = {}
    for call in calls():
        with recording(lambda launch: seen.setdefault(launch.kernel.fn.__name__, launch), 90):
            call.run()
    assert len(seen) >= 13
    for launch in seen.values():
        bind = create_function_from_signature(launch.kernel.signature, launch.kernel.params, backend)
        _, kinds, _ = bind(*launch.args, **launch.constants)
        unit = unit_of(launch, 90)
        assert [kind for _, kind in unit.signature] == [kind for kind, _ in kinds]
        aligned = [index for index, (kind, mark) in enumerate(kinds) if kind != "constexpr" and mark == "D"]
        assert list(unit.aligned) == aligned


def test_an_argument_that_is_not_specialised_is_neither_folded_nor_aligned() -> None:
    unit = unit_of(launch_of(1, 32, names=["a", "b"], plain=("a", "b")), 80)
    assert [kind for _, kind in unit.signature] == ["i32", "i32"]
    assert unit.aligned == ()


def test_a_launch_that_forgets_an_argument_is_told() -> None:
    with pytest.raises(ValueError, match="without \\['b'\\]"):
        unit_of(launch_of(2, names=["a", "b"]), 80)


def test_equal_compilations_are_made_once_and_named_by_all_who_need_them() -> None:
    weight = empty(64, dtype=torch.float32)
    twice = [Call(name, lambda: rms_norm(empty(8, 64), weight, 1e-6)) for name in ("one", "two")]
    [work] = units_of(twice, [80])
    assert work.calls == ["one", "two"]


@pytest.mark.parametrize(
    ("registers", "shared", "num_warps", "share"),
    [(32, 0, 4, 1.0), (64, 0, 4, 0.5), (128, 0, 8, 0.25), (255, 0, 4, 0.125), (32, 100 * 1024, 4, 0.125)],
)
def test_occupancy(registers: int, shared: int, num_warps: int, share: float) -> None:
    assert occupancy(LIMITS[90], registers, shared, num_warps) == share


def test_the_tuples_are_at_most_150_and_all_can_be_called() -> None:
    tuples = list(calls())
    assert len(tuples) <= 150
    assert len({call.name for call in tuples}) == len(tuples)
    compiled = {work.unit.kernel[1] for work in units_of(tuples, [80, 90, 100])}
    assert {"attend", "merge_splits", "norm_rows", "rope_heads", "draw", "multiply", "quantize_rows"} <= compiled


def test_the_gate_compiles_and_prints_its_table(tmp_path: Path) -> None:
    done = run_gate(tmp_path, "--only", "silu_and_mul qwen3-0.6b", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    assert "gate_rows" in done.stdout
    assert "1 tuples (limit 150), 3 kernels" in done.stdout
    assert '"spill": 0' in (tmp_path / "figures.json").read_text()


def test_a_name_that_is_no_tuple_is_an_error(tmp_path: Path) -> None:
    done = run_gate(tmp_path, "--only", "no such kernel")
    assert done.returncode == 2
    assert "no such kernel" in done.stderr
