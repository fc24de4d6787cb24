"""The production calls the gate compiles: real models' shapes on meta tensors, through the ops' own wrappers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from streamrunner.kernels.gpu.activation import gelu_tanh_and_mul, silu_and_mul
from streamrunner.kernels.gpu.attention import paged_attention
from streamrunner.kernels.gpu.fp8 import quantize_fp8
from streamrunner.kernels.gpu.logprobs import logprobs_at
from streamrunner.kernels.gpu.matmul import invariant_linear
from streamrunner.kernels.gpu.norm import add_rms_norm, rms_norm
from streamrunner.kernels.gpu.penalties import add_bias, apply_penalties, mask_tokens
from streamrunner.kernels.gpu.rope import rope_and_cache
from streamrunner.kernels.gpu.sampling import sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BF16, FP16, FP8, INT8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8


class Call(NamedTuple):
    """One tuple of the gate. needs: the lowest capability it makes sense on (fp8 has no instructions before 89)."""

    name: str
    run: Callable[[], object]
    needs: int = 80


class Model(NamedTuple):
    """The sizes of a model that reach a kernel."""

    name: str
    heads: int
    kv_heads: int
    dim: int
    hidden: int
    intermediate: int
    vocab: int


MODELS = (
    Model("qwen3-0.6b", 16, 8, 128, 1024, 3072, 151_936),
    Model("llama-3.1-8b", 32, 8, 128, 4096, 14_336, 128_256),
    Model("qwen3-14b", 40, 8, 128, 5120, 17_408, 151_936),
    Model("smollm2-135m", 9, 3, 64, 576, 1536, 49_152),
    Model("qwen2.5-0.5b", 14, 2, 64, 896, 4864, 151_936),
    Model("phi-3-mini", 32, 32, 96, 3072, 8192, 32_064),
    Model("gemma-2-9b", 16, 8, 256, 3584, 14_336, 256_000),
    Model("group-of-16", 64, 4, 64, 8192, 28_672, 128_256),
    Model("one-kv-head", 16, 1, 128, 2048, 8192, 256_000),
)
# Batches of the engine: decode with few sequences and with many, and a prefill step of a full token budget.
_FEW, _MANY, _BUDGET = 2, 256, 16_384
_TABLE_WIDTH = 512


def calls() -> Iterator[Call]:
    """All tuples, in the order of the table."""
    for model in MODELS:
        yield from _small_ops(model)
    for model in MODELS:
        yield from _rope(model, BF16)
        yield from _attention(model, BF16)
    yield from _variants()
    for model in MODELS[:4]:
        yield from _logits(model)
    for model in MODELS[:3]:
        yield from _products(model)


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """A tensor without memory: the wrappers look at shapes, strides and dtypes only."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _float(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.float32)


def _ids(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.int64)


def _small_ops(model: Model) -> Iterator[Call]:
    weight, rows = _float(model.hidden), _float(_MANY, model.hidden)
    yield Call(f"rms_norm {model.name}", partial(rms_norm, rows, weight, 1e-6, BF16))
    delta = empty(_MANY, model.hidden)
    yield Call(f"add_rms_norm {model.name}", partial(add_rms_norm, rows, delta, weight, 1e-6))
    gate = gelu_tanh_and_mul if model.name.startswith("gemma") else silu_and_mul
    yield Call(f"{gate.__name__} {model.name}", partial(gate, empty(_MANY, 2 * model.intermediate)))


class _Pages(NamedTuple):
    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None


def _pages(model: Model, dtype: torch.dtype, page: int, *, scaled: bool) -> _Pages:
    """Token by token in memory, as the engine lays pages out on a GPU."""
    k, v = (empty(4096, model.kv_heads, page, model.dim, dtype=dtype) for _ in "kv")
    k_scale, v_scale = (_float(4096, model.kv_heads, page) if scaled else None for _ in "kv")
    return _Pages(k.transpose(2, 3), v, k_scale, v_scale)


def _rope(model: Model, dtype: torch.dtype, *, scaled: bool = False, page: int = 16) -> Iterator[Call]:
    qkv = empty(_MANY, (model.heads + 2 * model.kv_heads) * model.dim)
    angles = _float(32_768, model.dim // 2)
    pages = _pages(model, dtype, page, scaled=scaled)
    q_norm, k_norm = (_float(model.dim) if "qwen3" in model.name else None for _ in "qk")
    ids, caches, scales = _ids(_MANY), pages[:2], pages[2:]
    run = partial(rope_and_cache, qkv, angles, angles, ids, ids, *caches, *scales, q_norm, k_norm, 1e-6)
    yield Call(f"rope_and_cache {model.name} {_name(dtype, scaled, page)}", run, 90 if dtype == FP8 else 80)


def _attention(
    model: Model, dtype: torch.dtype, *, scaled: bool = False, page: int = 16, window: int = 0
) -> Iterator[Call]:
    pages = _pages(model, dtype, page, scaled=scaled)
    cap, window = (50.0, 4096) if model.name.startswith("gemma") else (0.0, window)
    for step, tokens, spans in (("few", _FEW, _FEW), ("many", _MANY, _MANY), ("prefill", _BUDGET, 64)):
        q = _float(tokens, model.heads, model.dim)
        tables, positions, tiles = _ids(spans, _TABLE_WIDTH), _ids(tokens), _ids(spans, 3)
        run = partial(
            paged_attention, q, pages.k, pages.v, tables, positions, tiles, model.dim**-0.5, window, cap, *pages[2:]
        )
        kind = _name(dtype, scaled, page) + (" window" if window else "")
        yield Call(f"paged_attention {model.name} {step} {kind}", run, 90 if dtype == FP8 else 80)


def _name(dtype: torch.dtype, scaled: bool, page: int) -> str:
    names = {BF16: "bf16", FP16: "fp16", FP8: "fp8", INT8: "int8"}
    return names[dtype] + ("+scales" if scaled else "") + (f" page {page}" if page != 16 else "")


def _variants() -> Iterator[Call]:
    qwen, llama, _, smollm, *_ = MODELS
    for dtype, scaled in ((FP8, False), (FP8, True), (INT8, True)):
        for model in (qwen, llama):
            yield from _rope(model, dtype, scaled=scaled)
            yield from _attention(model, dtype, scaled=scaled)
    yield from _attention(smollm, FP16)
    yield from _attention(llama, BF16, page=64)
    yield from _attention(llama, BF16, window=4096)


def _logits(model: Model) -> Iterator[Call]:
    logits, entries = _float(_MANY, model.vocab), 4 * _MANY
    yield Call(f"sample {model.name}", partial(sample, logits, _float(_MANY, 4), _ids(_MANY, 3)))
    for count in (1, 21):
        yield Call(f"logprobs_at {model.name} {count}", partial(logprobs_at, logits, _ids(_MANY, count)))
    rows, tokens, counts = _ids(entries), _ids(entries), _ids(entries)
    yield Call(
        f"apply_penalties {model.name}", partial(apply_penalties, logits, rows, tokens, counts, _float(_MANY, 3))
    )
    yield Call(f"add_bias {model.name}", partial(add_bias, logits, rows, tokens, _float(entries)))
    masks = _ids(_MANY, -(-model.vocab // 64))
    yield Call(f"mask_tokens {model.name}", partial(mask_tokens, logits, _ids(_MANY), masks))


def _products(model: Model) -> Iterator[Call]:
    qkv = (model.heads + 2 * model.kv_heads) * model.dim
    for rows in (_FEW, 64, _MANY, _BUDGET):
        x, weight = empty(rows, model.hidden), empty(qkv, model.hidden)
        yield Call(f"invariant_linear {model.name} qkv {rows}", partial(invariant_linear, x, weight))
    x = empty(_BUDGET, model.intermediate)
    yield Call(f"quantize_fp8 {model.name}", partial(quantize_fp8, x), 90)
