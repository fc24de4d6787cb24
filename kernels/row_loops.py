"""Loops over one row: softmax weights, gates of feed-forward layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from streamrunner.kernels.llvm_vectors import (
    FLOAT,
    INDEX,
    LANES,
    VECTOR,
    constant,
    data_of,
    each_vector,
    exp_nonpositive,
    fma,
    larger,
    largest_lane,
    splat,
    store_at,
    store_narrowed,
    vector_at,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@intrinsic
def largest(_typing: Any, values: Any, first: Any, count: Any) -> Any:
    """The largest of `count` float32 (a multiple of LANES) from `first` on; NaN is passed over."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = builder.gep(data_of(context, builder, signature, args)[0], [args[1]])
        top = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [float("-inf")] * LANES))
        with each_vector(builder, args[2]) as index:
            builder.store(larger(builder, vector_at(builder, start, index), builder.load(top)), top)
        return largest_lane(builder, builder.load(top))

    return types.float32(values, types.int64, types.int64), generate


@intrinsic
def to_weights(
    _typing: Any, scores: Any, at: Any, count: Any, top: Any, sums: Any, sums_at: Any, shrink: Any, weights: Any
) -> Any:
    """weights = exp(scores - top), exactly 0 where they are -inf, and sums = shrink * sums + weights; LANES at a time.

    The sums are of float32 weights; `weights` may be bfloat16.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = data_of(context, builder, signature, args)
        places = [builder.gep(data[0], [args[1]]), builder.gep(data[4], [args[5]])]
        highest, factor = (splat(builder, value, LANES) for value in (args[3], args[6]))
        with each_vector(builder, args[2]) as index:
            score, total = (vector_at(builder, place, index) for place in places)
            weight = exp_nonpositive(builder, builder.fsub(score, highest))
            # "Unordered or not equal" is true for NaN, which has to show in the result.
            seen = builder.fcmp_unordered("!=", score, constant(float("-inf")))
            weight = builder.select(seen, weight, constant(0.0))
            store_narrowed(builder, weight, builder.gep(data[7], [builder.add(args[1], index)]))
            store_at(builder, fma(builder, total, factor, weight), places[1], index)
        return context.get_dummy_value()

    at_type, number = types.int64, types.float32
    return types.void(scores, at_type, at_type, number, sums, at_type, number, weights), generate


def _gate(activation: Callable[[Any, Any], Any]) -> Any:
    """A loop  out = activation(gate) * up  over stored numbers, LANES at a time."""

    @intrinsic
    def gate(_typing: Any, source: Any, gate_at: Any, up_at: Any, count: Any, out: Any, out_at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = data_of(context, builder, signature, args)
            gates, ups = (builder.gep(data[0], [at]) for at in (args[1], args[2]))
            outs = builder.gep(data[4], [args[5]])
            with each_vector(builder, args[3]) as index:
                x, up = (widened(builder, builder.gep(start, [index]), LANES) for start in (gates, ups))
                store_narrowed(builder, builder.fmul(activation(builder, x), up), builder.gep(outs, [index]))
            return context.get_dummy_value()

        at = types.int64
        return types.void(source, at, at, at, out, at), generate

    return gate


def _silu(builder: Any, x: Any) -> Any:
    return builder.fmul(x, _sigmoid(builder, x))


def _gelu_tanh(builder: Any, x: Any) -> Any:
    """0.5 * (1 + tanh(y)) is sigmoid(2 y), y = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    cubed = builder.fmul(builder.fmul(x, x), x)
    inner = fma(builder, constant(0.044715), cubed, x)
    return builder.fmul(x, _sigmoid(builder, builder.fmul(constant(2 * math.sqrt(2 / math.pi)), inner)))


def _sigmoid(builder: Any, x: Any) -> Any:
    """From exp of a non-positive number on both sides: exact to an ulp and never an overflow."""
    zero, one = constant(0.0), constant(1.0)
    positive = builder.fcmp_ordered(">=", x, zero)
    e = exp_nonpositive(builder, builder.select(positive, builder.fneg(x), x))
    return builder.fdiv(builder.select(positive, one, e), builder.fadd(one, e))


silu_gate, gelu_tanh_gate = _gate(_silu), _gate(_gelu_tanh)


@intrinsic
def quantise(_typing: Any, source: Any, at: Any, count: Any, out: Any) -> Any:
    """out = round(source / scale) + 128 as bytes, scale = largest absolute number / 127; returns the scale."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = data_of(context, builder, signature, args)
        start, target = builder.gep(data[0], [args[1]]), builder.gep(data[3], [args[1]])
        top, nothing = (cgutils.alloca_once_value(builder, constant(0.0)) for _ in range(2))
        with each_vector(builder, args[2]) as index:
            x = widened(builder, builder.gep(start, [index]), LANES)
            size = builder.select(builder.fcmp_ordered(">=", x, constant(0.0)), x, builder.fneg(x))
            builder.store(larger(builder, size, builder.load(top)), top)
            # Zero times a number is zero, but not for NaN and infinity: such a row gets NaN as its scale, and fails.
            builder.store(fma(builder, x, constant(0.0), builder.load(nothing)), nothing)
        highest = largest_lane(builder, builder.load(top))
        for lane in range(LANES):
            highest = builder.fadd(highest, builder.extract_element(builder.load(nothing), ir.Constant(INDEX, lane)))
        scale = builder.fdiv(highest, ir.Constant(FLOAT, 127.0))
        inverse = builder.fdiv(ir.Constant(FLOAT, 1.0), scale)
        some = builder.fcmp_ordered(">", scale, ir.Constant(FLOAT, 1e-30))
        factor = splat(builder, builder.select(some, inverse, ir.Constant(FLOAT, 0.0)), LANES)
        bytes_type = ir.VectorType(ir.IntType(8), LANES)
        with each_vector(builder, args[2]) as index:
            x = widened(builder, builder.gep(start, [index]), LANES)
            # A positive number: converting cuts towards zero, so adding a half first rounds.
            shifted = fma(builder, x, factor, constant(128.5))
            whole = builder.trunc(builder.fptosi(shifted, ir.VectorType(INDEX, LANES)), bytes_type)
            place = builder.bitcast(builder.gep(target, [index]), bytes_type.as_pointer())
            builder.store(whole, place, align=1)
        return scale

    return types.float32(source, types.int64, types.int64, out), generate


@intrinsic
def scale_row(_typing: Any, source: Any, at: Any, count: Any, scale: Any, bias: Any, has_bias: Any, out: Any) -> Any:
    """out = source * scale + bias, narrowed to what out stores."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = data_of(context, builder, signature, args)
        start, target = builder.gep(data[0], [args[1]]), builder.gep(data[6], [args[1]])
        factor = splat(builder, args[3], LANES)
        with each_vector(builder, args[2]) as index:
            x = builder.fmul(vector_at(builder, start, index), factor)
            total = cgutils.alloca_once_value(builder, x)
            with builder.if_then(args[5]):
                builder.store(builder.fadd(x, vector_at(builder, data[4], index)), total)
            store_narrowed(builder, builder.load(total), builder.gep(target, [index]))
        return context.get_dummy_value()

    at_type = types.int64
    return types.void(source, at_type, at_type, types.float32, bias, types.boolean, out), generate
