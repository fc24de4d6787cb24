"""A persistent matmul that sums in one order whatever the number of rows.

As many programs as multiprocessors take tile after tile; tiles next to each other share rows of x and columns of the
weight in L2. BLOCK_K is one number for all row counts, so the inputs are cut alike everywhere; only the tile's height,
its width and the warps follow the rows. cuBLAS chooses split-K by shape, which is faster for few rows and gives a row
other bits in another batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import launch, num_sms

Tensor = torch.Tensor

_BLOCK_K = 64
_GROUP = 8


class _Tile(NamedTuple):
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# By the most rows a tile is meant for.
_TILES = {16: _Tile(16, 64, 4, 4), 64: _Tile(64, 64, 4, 4), 256: _Tile(64, 128, 4, 3)}
_TALL = _Tile(128, 128, 8, 3)


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    x, weight, bias, out, num_rows, x_stride, weight_stride,
    OUT: tl.constexpr, IN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows_of_tiles, columns_of_tiles = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(OUT, BLOCK_N)
    for tile in range(tl.program_id(0), rows_of_tiles * columns_of_tiles, PROGRAMS):
        group = tile // (GROUP * columns_of_tiles)
        first = group * GROUP
        height = tl.minimum(rows_of_tiles - first, GROUP)
        m = (first + (tile % (GROUP * columns_of_tiles)) % height) * BLOCK_M + tl.arange(0, BLOCK_M)
        n = (tile % (GROUP * columns_of_tiles)) // height * BLOCK_N + tl.arange(0, BLOCK_N)
        # Rows beyond the end read the last one again: cheaper than a mask in the loop.
        x_row = x + tl.minimum(m, num_rows - 1)[:, None].to(tl.int64) * x_stride
        weight_row = weight + tl.minimum(n, OUT - 1)[None, :].to(tl.int64) * weight_stride
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, IN, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            if IN % BLOCK_K == 0:
                a, b = tl.load(x_row + k[None, :]), tl.load(weight_row + k[:, None])
            else:
                a = tl.load(x_row + k[None, :], mask=(k < IN)[None, :], other=0.0)
                b = tl.load(weight_row + k[:, None], mask=(k < IN)[:, None], other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if bias is not None:
            acc += tl.load(bias + n, mask=n < OUT, other=0.0).to(tl.float32)[None, :]
        target = out + m[:, None].to(tl.int64) * OUT + n[None, :]
        tl.store(target, acc, mask=(m < num_rows)[:, None] & (n < OUT)[None, :])


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `kernels.matmul.invariant_linear`."""
    x = x if x.stride(1) == 1 else x.contiguous()
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    (rows, size), out_size = x.shape, weight.shape[0]
    out = x.new_empty((rows, out_size))
    tile = next((tile for most, tile in _TILES.items() if rows <= most), _TALL)
    programs = min(num_sms(x.device), triton.cdiv(rows, tile.block_m) * triton.cdiv(out_size, tile.block_n))
    launch(
        multiply,
        (programs,),
        *(x, weight, bias, out, rows, x.stride(0), weight.stride(0)),
        OUT=out_size,
        IN=size,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=_BLOCK_K,
        GROUP=_GROUP,
        PROGRAMS=programs,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out
