"""How near each op comes to what the card can do: bytes against a plain copy, products against a plain matmul."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from gpu_kit.cases import Maker, Sizes, cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Rates(NamedTuple):
    """What the card was measured at: bytes moved (read and written) and bf16 operations a second."""

    bytes_per_s: float
    flops_per_s: float


class Timing(NamedTuple):
    """One op. of_copy: share of the copy bandwidth · of_matmul: share of the matmul rate, 0 without products."""

    name: str
    time_ms: float
    of_copy: float
    of_matmul: float


def measure_rates(device: torch.device, *, size: int = 8192, copy_bytes: int = 1 << 30) -> Rates:
    """A copy far larger than L2, and a square bf16 product."""
    source = torch.empty(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_ms = time_ms(lambda: target.copy_(source), device)
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in "ab")
    product_ms = time_ms(lambda: a @ b, device)
    return Rates(2 * copy_bytes / copy_ms * 1e3, 2 * size**3 / product_ms * 1e3)


def time_ops(sizes: Sizes, device: torch.device, rates: Rates) -> Iterator[Timing]:
    """The bf16 cases of the checks, timed."""
    for case in cases(Maker(sizes, device, torch.bfloat16, seed=1)):
        taken = time_ms(case.timed or case.run, device)
        flops = case.flops / taken * 1e3 / rates.flops_per_s
        yield Timing(case.name, taken, case.num_bytes / taken * 1e3 / rates.bytes_per_s, flops)


def time_ms(run: Callable[[], object], device: torch.device) -> float:
    """The median of a quarter second of runs, each with a cold L2; on a CPU the best of three."""
    if device.type == "cuda":
        from triton.testing import do_bench

        median: float = do_bench(run, warmup=50, rep=250, return_mode="median")
        return median
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best * 1e3
