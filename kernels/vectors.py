"""The inner loops of attention, written as LLVM vectors.

    out[r, c] = keep[r] * out[r, c] + sum over i of  rows[r, i] * panel[i, c]      r < 4, one fused step after another

Scores are this with rows = queries and panel = keys [D, B]; weighted values are this with rows = weights and
panel = values [B, D]. A panel is float32, int8 (widened in registers, once for all rows) or bfloat16: then rows are
too, both are taken in pairs as they lie in `pages`, and a step is the CPU's pairwise product where it has one. Each sum
has one order (i ascending, from what `out` had), whatever the number of rows or the width of a vector, so a query's
bits do not depend on who shares its pass over the page.

By hand, because LLVM's own vectoriser gives up where arrays may overlap or an index might be negative: measured 3 x
slower.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from streamrunner.kernels import cpu_math
from streamrunner.kernels.pages import is_paired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Rows that share a pass: with 32 columns, 8 AVX-512 registers of sums, of 32.
MAX_ROWS = 4

# Slots that the other loops take at once; pages are a multiple of it.
LANES = 16

_FLOAT, _INT, _INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_HALF = ir.IntType(16)
_VECTOR = ir.VectorType(_FLOAT, LANES)

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
            _emit(builder, num_rows, width, *_data(context, builder, signature, args))
            return context.get_dummy_value()

        at = types.int64
        return types.void(rows, at, at, panel, at, at, at, out, at, at, keep, types.boolean, at), generate

    return add


def _emit(
    builder: Any, num_rows: int, width: int, rows: Any, rows_at: Any, row_step: Any, panel: Any, panel_at: Any,
    panel_step: Any, depth: Any, out: Any, out_at: Any, out_step: Any, keep: Any, fresh: Any, ahead: Any,
) -> None:  # fmt: skip
    vector = ir.VectorType(_FLOAT, width)
    places = [builder.bitcast(_at(builder, out, out_at, out_step, r), vector.as_pointer()) for r in range(num_rows)]
    sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * width)) for _ in places]
    # Here and not in a loop of its own: a wide load behind narrower stores waits for them (measured 250 ns a page).
    with builder.if_then(builder.not_(fresh)):
        for r, (place, total) in enumerate(zip(places, sums, strict=True)):
            factor = builder.load(builder.gep(keep, [ir.Constant(_INT, r)]))
            kept = builder.fmul(builder.load(place, align=4), _splat(builder, factor, width))
            builder.store(kept, total)
    starts = [_at(builder, rows, rows_at, row_step, r) for r in range(num_rows)]
    step = _step_pair if panel.type.pointee == _HALF else _step
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
        column = _widened(builder, line.start(builder, loop.index), line.width)
        for start, total in zip(starts, sums, strict=True):
            factor = builder.load(builder.gep(start, [loop.index]))
            builder.store(_fma(builder, _splat(builder, factor, line.width), column, builder.load(total)), total)


def _step_pair(builder: Any, depth: Any, line: _Line, starts: list[Any], sums: list[Any]) -> None:
    """Two numbers of a row at a time; what lies beside an odd last one may be anything, so that is taken alone."""
    one = ir.Constant(_INT, 1)
    half = builder.lshr(depth, one)
    with cgutils.for_range(builder, half) as loop:
        column = _pairs(builder, line.start(builder, loop.index), line.width)
        for start, total in zip(starts, sums, strict=True):
            both = _splat(builder, _pair_at(builder, start, loop.index), line.width)
            builder.store(_add_pair(builder, builder.load(total), both, column), total)
    with builder.if_then(builder.icmp_unsigned("!=", builder.and_(depth, one), ir.Constant(_INT, 0))):
        column = _low(builder, _pairs(builder, line.start(builder, half), line.width))
        for start, total in zip(starts, sums, strict=True):
            factor = _low(builder, _splat(builder, _pair_at(builder, start, half), line.width))
            builder.store(_fma(builder, factor, column, builder.load(total)), total)


def _pairs(builder: Any, pointer: Any, width: int) -> Any:
    wide = ir.VectorType(_INDEX, width)
    return builder.load(builder.bitcast(pointer, wide.as_pointer()), align=2)


def _pair_at(builder: Any, start: Any, index: Any) -> Any:
    place = builder.gep(start, [builder.shl(index, ir.Constant(_INT, 1))])
    return builder.load(builder.bitcast(place, _INDEX.as_pointer()), align=2)


def _low(builder: Any, pairs: Any) -> Any:
    """The first number of each pair as float32: bfloat16 is the upper half of one."""
    sixteen = ir.Constant(pairs.type, [16] * pairs.type.count)
    return builder.bitcast(builder.shl(pairs, sixteen), ir.VectorType(_FLOAT, pairs.type.count))


def _high(builder: Any, pairs: Any) -> Any:
    upper = ir.Constant(pairs.type, [0xFFFF0000] * pairs.type.count)
    return builder.bitcast(builder.and_(pairs, upper), ir.VectorType(_FLOAT, pairs.type.count))


def _add_pair(builder: Any, total: Any, row: Any, column: Any) -> Any:
    if _HAS_PAIRWISE and total.type.count == _PAIRS_AT_ONCE:
        return _pairwise(builder, total, row, column)
    if _HAS_PAIRWISE and total.type.count > _PAIRS_AT_ONCE:
        parts = [
            _pairwise(builder, *(_part(builder, one, first) for one in (total, row, column)))
            for first in range(0, total.type.count, _PAIRS_AT_ONCE)
        ]
        return builder.shuffle_vector(
            *parts, ir.Constant(ir.VectorType(_INDEX, total.type.count), list(range(total.type.count)))
        )
    total = _fma(builder, _low(builder, row), _low(builder, column), total)
    return _fma(builder, _high(builder, row), _high(builder, column), total)


def _part(builder: Any, vector: Any, first: int) -> Any:
    order = ir.Constant(ir.VectorType(_INDEX, _PAIRS_AT_ONCE), list(range(first, first + _PAIRS_AT_ONCE)))
    return builder.shuffle_vector(vector, vector, order)


def _pairwise(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """AVX-512 BF16's VDPBF16PS."""
    halves = ir.VectorType(_BFloat(), 2 * _PAIRS_AT_ONCE)
    kind = ir.FunctionType(total.type, [total.type, halves, halves])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [total, builder.bitcast(row, halves), builder.bitcast(column, halves)])


def _at(builder: Any, base: Any, first: Any, step: Any, index: int) -> Any:
    return builder.gep(base, [builder.add(first, builder.mul(step, ir.Constant(_INT, index)))])


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    vector = x.type
    kind = ir.FunctionType(vector, [vector] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{vector.count}f32")
    return builder.call(function, [x, y, z])


def _splat(builder: Any, value: Any, width: int) -> Any:
    undefined = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_INDEX, width), [0] * width))


def _widened(builder: Any, pointer: Any, width: int) -> Any:
    """`width` stored numbers as float32: bfloat16 is the upper half of one, int8 is converted."""
    kind = pointer.type.pointee
    stored = builder.load(builder.bitcast(pointer, ir.VectorType(kind, width).as_pointer()), align=kind_bytes(kind))
    if kind == _FLOAT:
        return stored
    wide, floats = ir.VectorType(_INDEX, width), ir.VectorType(_FLOAT, width)
    if kind.width == 8:
        return builder.sitofp(builder.sext(stored, wide), floats)
    sixteen = ir.Constant(wide, [16] * width)
    return builder.bitcast(builder.shl(builder.zext(stored, wide), sixteen), floats)


def kind_bytes(kind: Any) -> int:
    """Bytes of one stored number."""
    return 4 if kind == _FLOAT else int(kind.width) // 8


def _prefetch(builder: Any, pointer: Any) -> None:
    """Pages lie scattered, and the hardware's prefetcher stops at each one's end."""
    byte = ir.IntType(8).as_pointer()
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, near, data = (ir.Constant(flag, value) for value in (0, 3, 1))
    builder.call(function, [builder.bitcast(pointer, byte), read, near, data])


@intrinsic
def largest(_typing: Any, values: Any, first: Any, count: Any) -> Any:
    """The largest of `count` float32 (a multiple of LANES) from `first` on; NaN is passed over."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = builder.gep(_data(context, builder, signature, args)[0], [args[1]])
        top = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [float("-inf")] * LANES))
        with _each_vector(builder, args[2]) as index:
            builder.store(_larger(builder, _vector_at(builder, start, index), builder.load(top)), top)
        return _largest_lane(builder, builder.load(top))

    return types.float32(values, types.int64, types.int64), generate


@intrinsic
def to_weights(
    _typing: Any, scores: Any, at: Any, count: Any, top: Any, sums: Any, sums_at: Any, shrink: Any, weights: Any
) -> Any:
    """weights = exp(scores - top), exactly 0 where they are -inf, and sums = shrink * sums + weights; LANES at a time.

    The sums are of float32 weights; `weights` may be bfloat16.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _data(context, builder, signature, args)
        places = [builder.gep(data[0], [args[1]]), builder.gep(data[4], [args[5]])]
        highest, factor = (_splat(builder, value, LANES) for value in (args[3], args[6]))
        with _each_vector(builder, args[2]) as index:
            score, total = (_vector_at(builder, place, index) for place in places)
            weight = _exp_nonpositive(builder, builder.fsub(score, highest))
            # "Unordered or not equal" is true for NaN, which has to show in the result.
            seen = builder.fcmp_unordered("!=", score, _constant(float("-inf")))
            weight = builder.select(seen, weight, _constant(0.0))
            _store_narrowed(builder, weight, builder.gep(data[7], [builder.add(args[1], index)]))
            _store_at(builder, _fma(builder, total, factor, weight), places[1], index)
        return context.get_dummy_value()

    at_type, number = types.int64, types.float32
    return types.void(scores, at_type, at_type, number, sums, at_type, number, weights), generate


def _gate(activation: Callable[[Any, Any], Any]) -> Any:
    """A loop  out = activation(gate) * up  over stored numbers, LANES at a time."""

    @intrinsic
    def gate(_typing: Any, source: Any, gate_at: Any, up_at: Any, count: Any, out: Any, out_at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = _data(context, builder, signature, args)
            gates, ups = (builder.gep(data[0], [at]) for at in (args[1], args[2]))
            outs = builder.gep(data[4], [args[5]])
            with _each_vector(builder, args[3]) as index:
                x, up = (_widened(builder, builder.gep(start, [index]), LANES) for start in (gates, ups))
                _store_narrowed(builder, builder.fmul(activation(builder, x), up), builder.gep(outs, [index]))
            return context.get_dummy_value()

        at = types.int64
        return types.void(source, at, at, at, out, at), generate

    return gate


def _silu(builder: Any, x: Any) -> Any:
    return builder.fmul(x, _sigmoid(builder, x))


def _gelu_tanh(builder: Any, x: Any) -> Any:
    """0.5 * (1 + tanh(y)) is sigmoid(2 y), y = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    cubed = builder.fmul(builder.fmul(x, x), x)
    inner = _fma(builder, _constant(0.044715), cubed, x)
    return builder.fmul(x, _sigmoid(builder, builder.fmul(_constant(2 * math.sqrt(2 / math.pi)), inner)))


def _sigmoid(builder: Any, x: Any) -> Any:
    """From exp of a non-positive number on both sides: exact to an ulp and never an overflow."""
    zero, one = _constant(0.0), _constant(1.0)
    positive = builder.fcmp_ordered(">=", x, zero)
    e = _exp_nonpositive(builder, builder.select(positive, builder.fneg(x), x))
    return builder.fdiv(builder.select(positive, one, e), builder.fadd(one, e))


def _store_narrowed(builder: Any, value: Any, pointer: Any) -> None:
    """Store float32 as what the pointer points to: itself, or bfloat16 rounded to nearest even, NaN kept."""
    kind = pointer.type.pointee
    if kind == _FLOAT:
        builder.store(value, builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)
        return
    wide = ir.VectorType(_INDEX, LANES)
    number = [ir.Constant(wide, [constant] * LANES) for constant in (16, 1, 0x7FFF, 0x7FC0)]
    bits = builder.bitcast(value, wide)
    odd = builder.and_(builder.lshr(bits, number[0]), number[1])
    nearest = builder.lshr(builder.add(bits, builder.add(odd, number[2])), number[0])
    nearest = builder.select(builder.fcmp_unordered("uno", value, value), number[3], nearest)
    narrow = ir.VectorType(kind, LANES)
    builder.store(builder.trunc(nearest, narrow), builder.bitcast(pointer, narrow.as_pointer()), align=2)


def _data(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Arguments with arrays as pointers to their first element."""
    return [
        context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, args, strict=True)
    ]


@contextmanager
def _each_vector(builder: Any, count: Any) -> Iterator[Any]:
    with cgutils.for_range(builder, builder.udiv(count, ir.Constant(_INT, LANES))) as loop:
        yield builder.mul(loop.index, ir.Constant(_INT, LANES))


def _vector_at(builder: Any, start: Any, index: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(start, [index]), _VECTOR.as_pointer()), align=4)


def _store_at(builder: Any, value: Any, start: Any, index: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(start, [index]), _VECTOR.as_pointer()), align=4)


def _constant(value: float) -> Any:
    return ir.Constant(_VECTOR, [value] * LANES)


def _larger(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _largest_lane(builder: Any, top: Any) -> Any:
    order = ir.VectorType(_INDEX, LANES)
    distance = LANES // 2
    while distance:
        turned = ir.Constant(order, [(lane + distance) % LANES for lane in range(LANES)])
        top = _larger(builder, builder.shuffle_vector(top, top, turned), top)
        distance //= 2
    return builder.extract_element(top, ir.Constant(_INDEX, 0))


def _exp_nonpositive(builder: Any, x: Any) -> Any:
    """`cpu_math.exp_nonpositive` on a vector."""
    lowest = _constant(float(cpu_math.LOWEST))
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    shifted = _fma(builder, x, _constant(float(cpu_math.LOG2E)), _constant(float(cpu_math.ROUND)))
    whole = builder.fsub(shifted, _constant(float(cpu_math.ROUND)))
    r = _fma(builder, whole, _constant(-float(cpu_math.LN2_HIGH)), x)
    r = _fma(builder, whole, _constant(-float(cpu_math.LN2_LOW)), r)
    p = _constant(float(cpu_math.EXP_TERMS[0]))
    for term in cpu_math.EXP_TERMS[1:]:
        p = _fma(builder, p, r, _constant(float(term)))
    p = builder.fadd(_fma(builder, p, builder.fmul(r, r), r), _constant(1.0))
    wide = ir.VectorType(_INDEX, LANES)
    bias = ir.Constant(wide, [int(cpu_math.BIAS) - int(cpu_math.ROUND_BITS)] * LANES)
    power = builder.shl(builder.add(builder.bitcast(shifted, wide), bias), ir.Constant(wide, [23] * LANES))
    return builder.fmul(p, builder.bitcast(power, _VECTOR))


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


silu_gate, gelu_tanh_gate = _gate(_silu), _gate(_gelu_tanh)
