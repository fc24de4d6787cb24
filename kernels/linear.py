"""Linear layers whose rows do not depend on how many rows there are.

oneDNN re-packs plain weights at every call, so they are packed once. How the sum over the inputs is cut can depend on
the number of rows; measured: float32 with packed weights (AVX2) gives a row the same bits for 1 to 512 rows, bf16 on
AMX only in calls of 64 to 192 rows. So each weight is tried when it is loaded, and calls are padded and cut to row
counts that agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor

_PROBES = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 130)
_LARGEST_CALL = 512


class Linear(Protocol):
    """A linear layer whose rows do not depend on how many rows there are."""

    in_features: int
    out_features: int
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """x: [R, in] float32 or dtype. Returns [R, out] of dtype."""


class RowRule(NamedTuple):
    """Row counts that give equal bits: multiples of `multiple`, at most `largest` a call."""

    multiple: int
    largest: int


# From the cheapest to the strictest; the last one is DESIGN's rule for bf16 on AMX.
_RULES = (RowRule(1, _LARGEST_CALL), RowRule(4, _LARGEST_CALL), RowRule(16, _LARGEST_CALL), RowRule(64, 192))


class PackedLinear:
    """`x @ weight.T + bias` with packed weights, bit-equal per row whatever the number of rows.

    weight: [out, in] float32 or bfloat16, not kept · bias: [out] or None
    rule: what was found for a weight of the same shape and dtype, to save the trial
    Raises RuntimeError where no row counts agree.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, rule: RowRule | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self._multiply = _packed_multiply(weight, bias)
        self.rule = rule or self._find_rule()

    def __call__(self, x: Tensor) -> Tensor:
        """x: [R, in] float32 or the weights' dtype, to which it is rounded. Returns [R, out] of the weights' dtype."""
        x = x.to(self.dtype)
        if x.shape[0] <= self.rule.largest:
            return self._call_rows(x)
        return torch.cat([self._call_rows(part) for part in torch.split(x, self.rule.largest)])

    def _call_rows(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        missing = -rows % self.rule.multiple
        if missing:
            x = torch.cat((x, x.new_zeros((missing, self.in_features))))
        return self._multiply(x)[:rows]

    def _find_rule(self) -> RowRule:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(max(_PROBES), self.in_features, generator=generator).to(self.dtype)
        for self.rule in _RULES:
            if self._agrees(rows):
                return self.rule
        raise RuntimeError(
            f"a linear layer of {self.out_features} x {self.in_features} ({self.dtype}) gives a row other bits in "
            "every batch on this CPU: run it in float32 (engine.dtype)"
        )

    def _agrees(self, rows: Tensor) -> bool:
        reference = self._call_rows(rows[:64])
        for count in _PROBES:
            shifted = self(rows[:count])
            same = min(count, 64)
            if not torch.equal(shifted[:same], reference[:same]):
                return False
        return True


def _packed_multiply(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """oneDNN's product with packed weights; torch's plain one where the CPU has no instructions for this dtype."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)  # noqa: SLF001 - no public name
    except RuntimeError:
        return lambda x: torch.nn.functional.linear(x, weight, bias)
    multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
    return lambda x: multiply(x, packed, bias, "none", [], "")
