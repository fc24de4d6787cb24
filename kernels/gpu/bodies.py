"""Which Triton body stands behind which op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrunner.kernels.gpu.activation import gelu_tanh_and_mul, silu_and_mul
from streamrunner.kernels.gpu.attention import paged_attention
from streamrunner.kernels.gpu.norm import add_rms_norm, rms_norm
from streamrunner.kernels.gpu.rope import rope_and_cache

if TYPE_CHECKING:
    from collections.abc import Callable

BODIES: dict[str, Callable[..., Any]] = {
    body.__name__: body
    for body in (add_rms_norm, gelu_tanh_and_mul, paged_attention, rms_norm, rope_and_cache, silu_and_mul)
}
