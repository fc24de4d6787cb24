"""Scalar functions that LLVM vectorises inside our loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from streamrunner.kernels.parallel import bits_of_float, float_of_bits

# Contraction to FMA is wanted; reassociation is not: the order of a sum is part of the contract.
FAST: Any = {"contract", "nsz"}

ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to the nearest integer
ROUND_BITS = np.int32(0x4B400000)
LOWEST = np.float32(-87.0)
LOG2E = np.float32(1.44269504)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
# Cephes' expf polynomial on [-ln2/2, ln2/2]; relative error measured here: 8e-8.
_P5 = np.float32(1.9875691500e-4)
_P4 = np.float32(1.3981999507e-3)
_P3 = np.float32(8.3334519073e-3)
_P2 = np.float32(4.1665795894e-2)
_P1 = np.float32(1.6666665459e-1)
_P0 = np.float32(5.0000001201e-1)
EXP_TERMS = (_P5, _P4, _P3, _P2, _P1, _P0)
_ONE = np.float32(1.0)
BIAS = np.int32(127)
_MANTISSA = np.int32(23)


@njit(fastmath=FAST, inline="always")
def exp_nonpositive(x: Any) -> Any:
    """exp(x) for float32 x <= 0; below -87 it is exp(-87), which no float32 sum notices."""
    x = max(x, LOWEST)
    shifted = x * LOG2E + ROUND
    whole = shifted - ROUND
    r = x - whole * LN2_HIGH
    r = r - whole * LN2_LOW
    p = _P5
    p = p * r + _P4
    p = p * r + _P3
    p = p * r + _P2
    p = p * r + _P1
    p = p * r + _P0
    p = p * (r * r) + r + _ONE
    return p * float_of_bits((bits_of_float(shifted) - ROUND_BITS + BIAS) << _MANTISSA)
