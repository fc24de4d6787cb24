"""Right or wrong: each op against float64, and bits that must not depend on the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gpu_kit.cases import TOLERANCE, Case, Maker, Sizes, cases, new_pages
from streamrunner.kernels.attention import paged_attention
from streamrunner.kernels.matmul import invariant_linear
from streamrunner.kernels.norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Iterator

Tensor = torch.Tensor


class Finding(NamedTuple):
    """One check. error: relative to the largest number, or the share of rows that differ; limit: what is allowed."""

    section: str
    name: str
    dtype: str
    error: float
    limit: float

    @property
    def is_good(self) -> bool:
        """NaN is not."""
        return self.error <= self.limit


def check_ops(sizes: Sizes, device: torch.device, seed: int) -> Iterator[Finding]:
    """Every op in every dtype the device has bodies for."""
    halves = (torch.bfloat16, torch.float16) if device.type == "cuda" else (torch.bfloat16,)
    for dtype in (*halves, torch.float32):
        for case in cases(Maker(sizes, device, dtype, seed)):
            yield _check(case, dtype)


def _check(case: Case, dtype: torch.dtype) -> Finding:
    actual, expected = case.run().double(), case.reference()
    limit = TOLERANCE[dtype] if case.tolerance is None else case.tolerance
    name = str(dtype).removeprefix("torch.")
    if limit < 0:
        return Finding("ops", case.name, name, float((actual != expected).double().mean()), -limit)
    error = float((actual - expected).abs().max() / expected.abs().max())
    return Finding("ops", case.name, name, error, limit)


def check_invariance(sizes: Sizes, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Iterator[Finding]:
    """A row alone, in a few and in many: same bits, in torch's deterministic mode."""
    name = str(dtype).removeprefix("torch.")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        make = Maker(sizes, device, dtype, seed=3)
        for op, share in (("rms_norm", _norm(make)), ("invariant_linear", _linear(make)), ("attention", _attend(make))):
            yield Finding("invariance", op, name, share, 0.0)
    finally:
        torch.use_deterministic_algorithms(mode=before)


def _norm(make: Maker) -> float:
    x, weight = make.wide(300, make.sizes.hidden), make.wide(make.sizes.hidden)
    whole = rms_norm(x, weight, 1e-6, make.dtype)
    return _differing(whole, {count: rms_norm(x[:count], weight, 1e-6, make.dtype) for count in (1, 17, 256)})


def _linear(make: Maker) -> float:
    x, weight = make.randn(2048, make.sizes.hidden), make.randn(make.sizes.hidden, make.sizes.hidden)
    whole = invariant_linear(x, weight)
    return _differing(whole, {count: invariant_linear(x[:count], weight) for count in (1, 16, 17, 64, 65, 256, 1024)})


def _attend(make: Maker) -> float:
    """Prefill of a whole prompt against chunks of it and single tokens, over the same pages."""
    sizes, device = make.sizes, make.device
    length = 6 * sizes.context
    width = -(-length // sizes.block)
    pages, q = new_pages(make, width), make.wide(length, sizes.heads, sizes.dim)
    table, positions = torch.arange(width, device=device)[None], torch.arange(length, device=device)

    def attend(first: int, last: int) -> Tensor:
        tiles = torch.tensor([[0, at, min(16, last - first - at)] for at in range(0, last - first, 16)], device=device)
        some = positions[first:last].contiguous()
        return paged_attention(q[first:last], *pages.stored, table, some, tiles, sizes.dim**-0.5)

    whole = attend(0, length)
    parts = [(0, 1), (0, 33), (length // 3, length // 3 + 100), (length - 1, length)]
    differing = [float((attend(first, last) != whole[first:last]).any(-1).double().mean()) for first, last in parts]
    return max(differing)


def _differing(whole: Tensor, parts: dict[int, Tensor]) -> float:
    return max(float((part != whole[:count]).any(-1).double().mean()) for count, part in parts.items())
