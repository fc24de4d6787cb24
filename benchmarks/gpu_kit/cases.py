"""Every op on fresh random inputs, with what it should give in float64 and the bytes or products it cannot avoid."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from streamrunner.kernels.activation import gelu_tanh_and_mul, silu_and_mul
from streamrunner.kernels.attention import paged_attention
from streamrunner.kernels.fp8 import fp8_linear, quantize_fp8
from streamrunner.kernels.logprobs import logprobs_at
from streamrunner.kernels.matmul import invariant_linear
from streamrunner.kernels.norm import add_rms_norm, rms_norm
from streamrunner.kernels.pages import paired
from streamrunner.kernels.penalties import apply_penalties
from streamrunner.kernels.rope import rope_and_cache
from streamrunner.kernels.sampling import sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Tensor = torch.Tensor


class Sizes(NamedTuple):
    """What the ops are called with. context: slots a decoding sequence has · prefill: tokens of one prompt."""

    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    hidden: int = 4096
    intermediate: int = 14_336
    vocab: int = 128_256
    sequences: int = 256
    context: int = 900
    prefill: int = 4096
    block: int = 32


TINY = Sizes(4, 2, 16, 64, 96, 300, 3, 40, 20, 16)
# By dtype: the largest error, relative to the largest number of the reference.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


class Case(NamedTuple):
    """One op on one set of inputs. num_bytes: read and written at least · flops: of its products, 0 for none.

    timed: the op alone, where `run` does more to show its result
    """

    name: str
    run: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    num_bytes: int
    flops: int = 0
    tolerance: float | None = None
    timed: Callable[[], object] | None = None


class Maker:
    """Makes the inputs of one dtype on one device."""

    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.sizes, self.device, self.dtype = sizes, device, dtype
        self._generator = torch.Generator(device).manual_seed(seed)

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device).to(dtype or self.dtype)

    def wide(self, *shape: int) -> Tensor:
        return self.randn(*shape, dtype=torch.float32)

    def ids(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self._generator, device=self.device)


def cases(make: Maker) -> Iterator[Case]:
    """All ops; those of logits and FP8 once, with the 16-bit dtypes."""
    yield from _rows(make)
    yield from _rotation(make)
    yield from _attention(make)
    yield from _products(make)
    if make.dtype == torch.bfloat16:
        yield from _logits(make)


def _rows(make: Maker) -> Iterator[Case]:
    rows, hidden = make.sizes.prefill, make.sizes.hidden
    x, delta, weight = make.wide(rows, hidden), make.randn(rows, hidden), make.wide(hidden)
    spare = x.clone()
    size = make.dtype.itemsize
    yield Case(
        "rms_norm", lambda: rms_norm(x, weight, 1e-6, make.dtype), lambda: _normed(x, weight), x.numel() * (4 + size)
    )
    yield Case(
        "add_rms_norm",
        lambda: add_rms_norm(x.clone(), delta, weight, 1e-6),
        lambda: _normed(x.double() + delta.double(), weight),
        x.numel() * (8 + 2 * size),
        timed=lambda: add_rms_norm(spare, delta, weight, 1e-6),
    )
    gate_up = make.randn(rows, 2 * make.sizes.intermediate)
    gate, up = gate_up.chunk(2, dim=1)
    moved = gate_up.numel() * size * 3 // 2
    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    yield Case("silu_and_mul", lambda: silu_and_mul(gate_up), lambda: silu(gate.double()) * up.double(), moved)
    yield Case(
        "gelu_tanh_and_mul",
        lambda: gelu_tanh_and_mul(gate_up),
        lambda: gelu(gate.double(), approximate="tanh") * up.double(),
        moved,
    )


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


class Pages(NamedTuple):
    """A layer's pages. k: [N, KV, D, B] · v: [N, KV, B, D] · stored: the same as the op of this device wants them."""

    k: Tensor
    v: Tensor
    stored: tuple[Tensor, Tensor]


def new_pages(make: Maker, num_blocks: int) -> Pages:
    """Pages full of random numbers; on a GPU token by token in memory, on a CPU in the order of its loops."""
    shape = (num_blocks, make.sizes.kv_heads, make.sizes.block, make.sizes.dim)
    k, v = make.randn(*shape).transpose(2, 3), make.randn(*shape)
    if make.device.type == "cuda":
        return Pages(k, v, (k, v))
    plain = k.contiguous(), v
    return Pages(k, v, plain if make.dtype != torch.bfloat16 else (paired(plain[0]), paired(v)))


def _rotation(make: Maker) -> Iterator[Case]:
    sizes, tokens = make.sizes, make.sizes.prefill
    pages = new_pages(make, tokens // sizes.block + 1)
    qkv = make.randn(tokens, (sizes.heads + 2 * sizes.kv_heads) * sizes.dim)
    angles = make.wide(tokens, sizes.dim // 2)
    cos, sin = angles.cos(), angles.sin()
    at, norm = torch.arange(tokens, device=make.device), make.wide(sizes.dim)

    def run() -> Tensor:
        return rope_and_cache(qkv, cos, sin, at, at, *pages.stored, q_norm=norm, k_norm=norm, eps=1e-6)

    def reference() -> Tensor:
        q = _normed(qkv.view(tokens, -1, sizes.dim)[:, : sizes.heads], norm)
        low, high = q.chunk(2, dim=-1)
        c, s = cos.double()[:, None], sin.double()[:, None]
        return torch.cat((low * c - high * s, high * c + low * s), -1)

    yield Case("rope_and_cache", run, reference, qkv.numel() * 2 * make.dtype.itemsize, tolerance=1e-5)


def _attention(make: Maker) -> Iterator[Case]:
    sizes = make.sizes
    lengths = [sizes.context + (i * 37) % 64 - 32 for i in range(sizes.sequences)]
    yield _attention_case(make, "paged_attention decode", lengths, [1] * len(lengths))
    yield _attention_case(make, "paged_attention one long", [8 * sizes.context], [1])
    yield _attention_case(make, "paged_attention prefill", [sizes.prefill, sizes.prefill // 2], [sizes.prefill, 7])


def _attention_case(make: Maker, name: str, lengths: list[int], queries: list[int]) -> Case:
    sizes, device = make.sizes, make.device
    width = -(-max(lengths) // sizes.block)
    pages = new_pages(make, len(lengths) * width)
    tables = torch.arange(len(lengths) * width, device=device).flip(0).view(len(lengths), width).contiguous()
    q = make.wide(sum(queries), sizes.heads, sizes.dim)
    positions = torch.tensor(
        [p for length, count in zip(lengths, queries, strict=True) for p in range(length - count, length)],
        device=device,
    )
    tiles = torch.tensor(_tiles(queries), device=device)
    seen = sum(length * count - count * (count - 1) // 2 for length, count in zip(lengths, queries, strict=True))

    def run() -> Tensor:
        return paged_attention(q, *pages.stored, tables, positions, tiles, sizes.dim**-0.5)

    def reference() -> Tensor:
        parts, first = [], 0
        for sequence, (length, count) in enumerate(zip(lengths, queries, strict=True)):
            k = pages.k[tables[sequence]].permute(1, 0, 3, 2).flatten(1, 2)[:, :length].double()
            v = pages.v[tables[sequence]].transpose(0, 1).flatten(1, 2)[:, :length].double()
            parts.append(_attend(q[first : first + count].double(), k, v, sizes.dim**-0.5))
            first += count
        return torch.cat(parts)

    kv_bytes = 2 * sum(lengths) * sizes.kv_heads * sizes.dim * make.dtype.itemsize
    flops = 4 * seen * sizes.heads * sizes.dim if max(queries) > 1 else 0
    return Case(name, run, reference, kv_bytes + q.numel() * 8, flops)


def _tiles(queries: list[int]) -> list[list[int]]:
    """At most 16 tokens each, as the CPU body wants; a GPU takes any count."""
    tiles, first = [], 0
    for sequence, count in enumerate(queries):
        tiles += [[sequence, at, min(16, first + count - at)] for at in range(first, first + count, 16)]
        first += count
    return tiles


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of the last tokens of a sequence, a KV head at a time. q: [T, H, D] · k, v: [KV, L, D]."""
    group, length = q.shape[1] // k.shape[0], k.shape[1]
    hidden = torch.ones(q.shape[0], length, dtype=torch.bool, device=q.device).triu(length - q.shape[0] + 1)
    heads = []
    for head in range(q.shape[1]):
        scores = (q[:, head] @ k[head // group].t() * scale).masked_fill_(hidden, float("-inf"))
        heads.append(scores.softmax(-1) @ v[head // group])
    return torch.stack(heads, 1)


def _products(make: Maker) -> Iterator[Case]:
    size, out_size = make.sizes.hidden, make.sizes.hidden
    weight = make.randn(out_size, size)
    for rows in (8, make.sizes.prefill):
        yield _product(make.randn(rows, size), weight)


def _product(x: Tensor, weight: Tensor) -> Case:
    flops, moved = 2 * x.numel() * weight.shape[0], (x.numel() + weight.numel()) * x.itemsize
    return Case(
        f"invariant_linear {x.shape[0]}",
        lambda: invariant_linear(x, weight),
        lambda: x.double() @ weight.double().t(),
        moved,
        flops if x.shape[0] > 256 else 0,
    )


def _logits(make: Maker) -> Iterator[Case]:
    rows, vocab = make.sizes.sequences, make.sizes.vocab
    logits, ids = make.wide(rows, vocab) * 3, make.ids(vocab, rows, 6)
    settings = torch.tensor([[0.8, 40.0, 0.95, 0.02]], device=make.device).repeat(rows, 1)
    keys = make.ids(1 << 40, rows, 3)
    pass_bytes = logits.numel() * 4

    def on_cpu() -> Tensor:
        return sample(logits.cpu(), settings.cpu(), keys.cpu()).to(make.device).double()

    # At the edge of top-p a token may differ: there the sums are float32.
    yield Case("sample filtered", lambda: sample(logits, settings, keys), on_cpu, 2 * pass_bytes, tolerance=-0.01)
    plain = torch.tensor([[1.0, 0.0, 1.0, 0.0]], device=make.device).repeat(rows, 1)
    yield Case(
        "sample plain",
        lambda: sample(logits, plain, keys),
        lambda: sample(logits.cpu(), plain.cpu(), keys.cpu()).to(make.device).double(),
        pass_bytes,
        tolerance=-0.001,
    )
    yield Case(
        "logprobs_at",
        lambda: logprobs_at(logits, ids)[0],
        lambda: logits.double().log_softmax(1).gather(1, ids),
        2 * pass_bytes,
        tolerance=1e-5,
    )
    entry_rows = torch.arange(rows, device=make.device)
    counts, penalties = make.ids(3, rows), torch.tensor([[0.5, 0.2, 1.2]], device=make.device).repeat(rows, 1)

    def penalised() -> Tensor:
        changed = logits.clone()
        apply_penalties(changed, entry_rows, ids[:, 0].contiguous(), counts, penalties)
        return changed[entry_rows, ids[:, 0]]

    def penalised_exactly() -> Tensor:
        x = logits[entry_rows, ids[:, 0]].double()
        return torch.where(x > 0, x / 1.2, x * 1.2) - 0.2 * counts - 0.5 * (counts > 0)

    spare = logits.clone()
    timed = partial(apply_penalties, spare, entry_rows, ids[:, 0].contiguous(), counts, penalties)
    yield Case("apply_penalties", penalised, penalised_exactly, rows * 8, tolerance=1e-5, timed=timed)
    yield from _fp8(make)


def _fp8(make: Maker) -> Iterator[Case]:
    x, weight = make.randn(make.sizes.prefill, make.sizes.hidden), make.randn(make.sizes.hidden, make.sizes.hidden)
    q, scale = quantize_fp8(x)
    w, w_scale = quantize_fp8(weight)

    def dequantised() -> Tensor:
        values, scales = quantize_fp8(x)
        return values.double() * scales.double()

    timed = partial(quantize_fp8, x)
    yield Case("quantize_fp8", dequantised, x.double, x.numel() * 3, tolerance=1 / 16, timed=timed)
    yield Case(
        "fp8_linear",
        lambda: fp8_linear(q, scale, w, w_scale, None, torch.bfloat16),
        lambda: (q.double() * scale.double()) @ (w.double() * w_scale.double()).t(),
        q.numel() + w.numel(),
        2 * q.numel() * w.shape[0],
    )
