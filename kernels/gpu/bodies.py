"""Which Triton body stands behind which op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrunner.kernels.gpu import activation, attention, fp8, logprobs, matmul, norm, penalties, rope, sampling

if TYPE_CHECKING:
    from collections.abc import Callable

BODIES: dict[str, Callable[..., Any]] = {
    body.__name__: body
    for body in (
        activation.gelu_tanh_and_mul,
        activation.silu_and_mul,
        attention.paged_attention,
        fp8.fp8_linear,
        fp8.quantize_fp8,
        logprobs.logprobs_at,
        logprobs.top_logprobs,
        matmul.invariant_linear,
        norm.add_rms_norm,
        norm.rms_norm,
        penalties.add_bias,
        penalties.apply_penalties,
        penalties.mask_tokens,
        rope.rope_and_cache,
        sampling.sample,
    )
}
