"""The inner loop of attention, as LLVM vectors: sums of products over a page.

    out[r, c] = keep[r] * out[r, c] + sum over i of  rows[r, i] * panel[i, c]      r < 4, one fused step after another

Scores are this with rows = queries and panel = keys [D, B]; weighted values are this with rows = weights and
panel = values [B, D]. A panel is float32, int8 (widened in registers, once for all rows) or bfloat16: then rows are
too, both are taken in pairs as they lie in `pages`, and a step is the CPU's pairwise product where it has one. Each sum
has one order (i ascending, from what `out` had), whatever the number of rows or the width of a vector, so a query's
bits do not depend on who shares its pass over the page.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from streamrunner.kernels.llvm_vectors import FLOAT, HALF, INDEX, INT, data_of, fma, splat, widened
from streamrunner.kernels.pages import is_paired

# Rows that share a pass: with 32 columns, 8 AVX-512 registers of sums, of 32.
MAX_ROWS = 4
_PAIRS_AT_ONCE = 16
_HAS_PAIRWISE = bool(get_host_cpu_features().get("avx512bf16"))


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def _micro_kernel(num_rows: int, width: int) -> Any:
    """The loop for a number of rows and of columns, both known to LLVM."""

    @intrinsic
    def add(
        _typing: Any, rows: Any, rows_at: Any, row_step: Any, panel: Any, panel_at: Any, panel_step: Any, depth: Any,
        out: Any, out_at: Any, out_step: Any, keep: Any, fresh: Any, ahead: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _emit(builder, num_rows, width, *data_of(context, builder, signature, args))
            return context.get_dummy_value()

        at = types.int64
        return types.void(rows, at, at, panel, at, at, at, out, at, at, keep, types.boolean, at), generate

    return add


def _emit(
    builder: Any, num_rows: int, width: int, rows: Any, rows_at: Any, row_step: Any, panel: Any, panel_at: Any,
    panel_step: Any, depth: Any, out: Any, out_at: Any, out_step: Any, keep: Any, fresh: Any, ahead: Any,
) -> None:  # fmt: skip
    vector = ir.VectorType(FLOAT, width)
    places = [builder.bitcast(_at(builder, out, out_at, out_step, r), vector.as_pointer()) for r in range(num_rows)]
    sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * width)) for _ in places]
    # Here and not in a loop of its own: a wide load behind narrower stores waits for them (measured 250 ns a page).
    with builder.if_then(builder.not_(fresh)):
        for r, (place, total) in enumerate(zip(places, sums, strict=True)):
            factor = builder.load(builder.gep(keep, [ir.Constant(INT, r)]))
            kept = builder.fmul(builder.load(place, align=4), splat(builder, factor, width))
            builder.store(kept, total)
    starts = [_at(builder, rows, rows_at, row_step, r) for r in range(num_rows)]
    step = _step_pair if panel.type.pointee == HALF else _step
    line = _Line(panel, panel_at, panel_step, ahead, width)
    step(builder, depth, line, starts, sums)
    for place, total in zip(places, sums, strict=True):
        builder.store(builder.load(total), place, align=4)


class _Line(NamedTuple):
    """Where the lines of a panel are: `step` apart, each `width` numbers (or pairs) that are taken at once."""

    panel: Any
    first: Any
    step: Any
    ahead: Any
    width: int

    def start(self, builder: Any, index: Any) -> Any:
        offset = builder.add(self.first, builder.mul(index, self.step))
        _prefetch(builder, builder.gep(self.panel, [builder.add(offset, self.ahead)]))
        return builder.gep(self.panel, [offset])


def _step(builder: Any, depth: Any, line: _Line, starts: list[Any], sums: list[Any]) -> None:
    with cgutils.for_range(builder, depth) as loop:
        column = widened(builder, line.start(builder, loop.index), line.width)
        for start, total in zip(starts, sums, strict=True):
            factor = builder.load(builder.gep(start, [loop.index]))
            builder.store(fma(builder, splat(builder, factor, line.width), column, builder.load(total)), total)


def _step_pair(builder: Any, depth: Any, line: _Line, starts: list[Any], sums: list[Any]) -> None:
    """Two numbers of a row at a time; what lies beside an odd last one may be anything, so that is taken alone."""
    one = ir.Constant(INT, 1)
    half = builder.lshr(depth, one)
    with cgutils.for_range(builder, half) as loop:
        column = _pairs(builder, line.start(builder, loop.index), line.width)
        for start, total in zip(starts, sums, strict=True):
            both = splat(builder, _pair_at(builder, start, loop.index), line.width)
            builder.store(_add_pair(builder, builder.load(total), both, column), total)
    with builder.if_then(builder.icmp_unsigned("!=", builder.and_(depth, one), ir.Constant(INT, 0))):
        column = _low(builder, _pairs(builder, line.start(builder, half), line.width))
        for start, total in zip(starts, sums, strict=True):
            factor = _low(builder, splat(builder, _pair_at(builder, start, half), line.width))
            builder.store(fma(builder, factor, column, builder.load(total)), total)


def _pairs(builder: Any, pointer: Any, width: int) -> Any:
    wide = ir.VectorType(INDEX, width)
    return builder.load(builder.bitcast(pointer, wide.as_pointer()), align=2)


def _pair_at(builder: Any, start: Any, index: Any) -> Any:
    place = builder.gep(start, [builder.shl(index, ir.Constant(INT, 1))])
    return builder.load(builder.bitcast(place, INDEX.as_pointer()), align=2)


def _low(builder: Any, pairs: Any) -> Any:
    """The first number of each pair as float32: bfloat16 is the upper half of one."""
    sixteen = ir.Constant(pairs.type, [16] * pairs.type.count)
    return builder.bitcast(builder.shl(pairs, sixteen), ir.VectorType(FLOAT, pairs.type.count))


def _high(builder: Any, pairs: Any) -> Any:
    upper = ir.Constant(pairs.type, [0xFFFF0000] * pairs.type.count)
    return builder.bitcast(builder.and_(pairs, upper), ir.VectorType(FLOAT, pairs.type.count))


def _add_pair(builder: Any, total: Any, row: Any, column: Any) -> Any:
    if _HAS_PAIRWISE and total.type.count == _PAIRS_AT_ONCE:
        return _pairwise(builder, total, row, column)
    if _HAS_PAIRWISE and total.type.count > _PAIRS_AT_ONCE:
        parts = [
            _pairwise(builder, *(_part(builder, one, first) for one in (total, row, column)))
            for first in range(0, total.type.count, _PAIRS_AT_ONCE)
        ]
        return builder.shuffle_vector(
            *parts, ir.Constant(ir.VectorType(INDEX, total.type.count), list(range(total.type.count)))
        )
    total = fma(builder, _low(builder, row), _low(builder, column), total)
    return fma(builder, _high(builder, row), _high(builder, column), total)


def _part(builder: Any, vector: Any, first: int) -> Any:
    order = ir.Constant(ir.VectorType(INDEX, _PAIRS_AT_ONCE), list(range(first, first + _PAIRS_AT_ONCE)))
    return builder.shuffle_vector(vector, vector, order)


def _pairwise(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """AVX-512 BF16's VDPBF16PS."""
    halves = ir.VectorType(_BFloat(), 2 * _PAIRS_AT_ONCE)
    kind = ir.FunctionType(total.type, [total.type, halves, halves])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [total, builder.bitcast(row, halves), builder.bitcast(column, halves)])


def _at(builder: Any, base: Any, first: Any, step: Any, index: int) -> Any:
    return builder.gep(base, [builder.add(first, builder.mul(step, ir.Constant(INT, index)))])


def _prefetch(builder: Any, pointer: Any) -> None:
    """Pages lie scattered, and the hardware's prefetcher stops at each one's end."""
    byte = ir.IntType(8).as_pointer()
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, near, data = (ir.Constant(flag, value) for value in (0, 3, 1))
    builder.call(function, [builder.bitcast(pointer, byte), read, near, data])


_1_8, _2_8, _3_8, _4_8 = (_micro_kernel(rows, 8) for rows in (1, 2, 3, 4))
_1_16, _2_16, _3_16, _4_16 = (_micro_kernel(rows, 16) for rows in (1, 2, 3, 4))
_1_32, _2_32, _3_32, _4_32 = (_micro_kernel(rows, 32) for rows in (1, 2, 3, 4))


@njit(nogil=True, inline="always")
def _pick(one: Any, two: Any, three: Any, four: Any, num_rows: int, a: Any) -> None:
    if num_rows == 4:
        four(*a)
    elif num_rows == 3:
        three(*a)
    elif num_rows == 2:
        two(*a)
    else:
        one(*a)


@njit(nogil=True)
def add_products(
    num_rows: int, rows: Any, rows_at: int, row_step: int, panel: Any, panel_at: int, width: int, depth: int,
    out: Any, out_at: int, keep: Any, fresh: bool, ahead: int,
) -> None:  # fmt: skip
    """out[r, :] = keep[r] * out[r, :] + rows[r, :depth] @ panel[:depth, :] for up to MAX_ROWS rows.

    Arrays are flat; out and keep are float32, rows too unless the panel is bfloat16. width: columns of the panel and
    of out, a multiple of 8. fresh: out is not read, it may hold anything. ahead: how far behind each line of this panel
    lies the line that will be wanted next.
    """
    column, pair = 0, 2 if is_paired(panel) else 1
    while column < width:
        left, at = width - column, panel_at + column * pair
        a = (rows, rows_at, row_step, panel, at, width * pair, depth, out, out_at + column, width, keep, fresh, ahead)
        if left >= 32:
            _pick(_1_32, _2_32, _3_32, _4_32, num_rows, a)
            column += 32
        elif left >= 16:
            _pick(_1_16, _2_16, _3_16, _4_16, num_rows, a)
            column += 16
        else:
            _pick(_1_8, _2_8, _3_8, _4_8, num_rows, a)
            column += 8
