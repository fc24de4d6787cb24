"""The vocabulary of our LLVM loops: vectors of float32, however the numbers are stored.

numba takes an `intrinsic` that writes LLVM's own instructions. By hand, because LLVM's vectoriser gives up where arrays
may overlap or an index might be negative: measured 3 x slower.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from streamrunner.kernels import cpu_math

if TYPE_CHECKING:
    from collections.abc import Iterator

# Numbers that a loop takes at once; pages and gates are a multiple of it.
LANES = 16

FLOAT, INT, INDEX, HALF = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(16)
VECTOR = ir.VectorType(FLOAT, LANES)


def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    vector = x.type
    kind = ir.FunctionType(vector, [vector] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{vector.count}f32")
    return builder.call(function, [x, y, z])


def splat(builder: Any, value: Any, width: int) -> Any:
    """A vector of one number."""
    undefined = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(INDEX, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(INDEX, width), [0] * width))


def widened(builder: Any, pointer: Any, width: int) -> Any:
    """`width` stored numbers as float32: bfloat16 is the upper half of one, int8 is converted."""
    kind = pointer.type.pointee
    stored = builder.load(builder.bitcast(pointer, ir.VectorType(kind, width).as_pointer()), align=kind_bytes(kind))
    if kind == FLOAT:
        return stored
    wide, floats = ir.VectorType(INDEX, width), ir.VectorType(FLOAT, width)
    if kind.width == 8:
        return builder.sitofp(builder.sext(stored, wide), floats)
    sixteen = ir.Constant(wide, [16] * width)
    return builder.bitcast(builder.shl(builder.zext(stored, wide), sixteen), floats)


def kind_bytes(kind: Any) -> int:
    """Bytes of one stored number."""
    return 4 if kind == FLOAT else int(kind.width) // 8


def store_narrowed(builder: Any, value: Any, pointer: Any) -> None:
    """Store float32 as what the pointer points to: itself, or bfloat16 rounded to nearest even, NaN kept."""
    kind = pointer.type.pointee
    if kind == FLOAT:
        builder.store(value, builder.bitcast(pointer, VECTOR.as_pointer()), align=4)
        return
    wide = ir.VectorType(INDEX, LANES)
    number = [ir.Constant(wide, [constant] * LANES) for constant in (16, 1, 0x7FFF, 0x7FC0)]
    bits = builder.bitcast(value, wide)
    odd = builder.and_(builder.lshr(bits, number[0]), number[1])
    nearest = builder.lshr(builder.add(bits, builder.add(odd, number[2])), number[0])
    nearest = builder.select(builder.fcmp_unordered("uno", value, value), number[3], nearest)
    narrow = ir.VectorType(kind, LANES)
    builder.store(builder.trunc(nearest, narrow), builder.bitcast(pointer, narrow.as_pointer()), align=2)


def data_of(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Arguments with arrays as pointers to their first element."""
    return [
        context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, args, strict=True)
    ]


@contextmanager
def each_vector(builder: Any, count: Any) -> Iterator[Any]:
    """A loop over `count / LANES` vectors; yields where each begins."""
    with cgutils.for_range(builder, builder.udiv(count, ir.Constant(INT, LANES))) as loop:
        yield builder.mul(loop.index, ir.Constant(INT, LANES))


def vector_at(builder: Any, start: Any, index: Any) -> Any:
    """Load a vector from `start[index:]`."""
    return builder.load(builder.bitcast(builder.gep(start, [index]), VECTOR.as_pointer()), align=4)


def store_at(builder: Any, value: Any, start: Any, index: Any) -> None:
    """Store a vector at `start[index:]`."""
    builder.store(value, builder.bitcast(builder.gep(start, [index]), VECTOR.as_pointer()), align=4)


def constant(value: float) -> Any:
    """A vector of one float32."""
    return ir.Constant(VECTOR, [value] * LANES)


def larger(builder: Any, x: Any, y: Any) -> Any:
    """The larger of each pair of lanes; y where x is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def largest_lane(builder: Any, top: Any) -> Any:
    """The largest lane as a scalar."""
    order = ir.VectorType(INDEX, LANES)
    distance = LANES // 2
    while distance:
        turned = ir.Constant(order, [(lane + distance) % LANES for lane in range(LANES)])
        top = larger(builder, builder.shuffle_vector(top, top, turned), top)
        distance //= 2
    return builder.extract_element(top, ir.Constant(INDEX, 0))


def exp_nonpositive(builder: Any, x: Any) -> Any:
    """`cpu_math.exp_nonpositive` on a vector."""
    lowest = constant(float(cpu_math.LOWEST))
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    shifted = fma(builder, x, constant(float(cpu_math.LOG2E)), constant(float(cpu_math.ROUND)))
    whole = builder.fsub(shifted, constant(float(cpu_math.ROUND)))
    r = fma(builder, whole, constant(-float(cpu_math.LN2_HIGH)), x)
    r = fma(builder, whole, constant(-float(cpu_math.LN2_LOW)), r)
    p = constant(float(cpu_math.EXP_TERMS[0]))
    for term in cpu_math.EXP_TERMS[1:]:
        p = fma(builder, p, r, constant(float(term)))
    p = builder.fadd(fma(builder, p, builder.fmul(r, r), r), constant(1.0))
    wide = ir.VectorType(INDEX, LANES)
    bias = ir.Constant(wide, [int(cpu_math.BIAS) - int(cpu_math.ROUND_BITS)] * LANES)
    power = builder.shl(builder.add(builder.bitcast(shifted, wide), bias), ir.Constant(wide, [23] * LANES))
    return builder.fmul(p, builder.bitcast(power, VECTOR))
