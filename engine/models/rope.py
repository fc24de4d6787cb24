"""Frequencies of rotary position embedding (arXiv 2104.09864) and their scaled variants, as tables of cos and sin.

A variant's table must not depend on how long a sequence is: keys stay in pages, and pages are shared. So `dynamic` is
served within the context the model was trained for, where it changes nothing, and `longrope` takes its long factors
for every sequence as soon as the engine's limit lies beyond the original context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor
Rope = Mapping[str, Any]


class RotaryTables(NamedTuple):
    """cos and sin of every position, [positions, R / 2] float32; R = 0 for layers without positions."""

    cos: Tensor
    sin: Tensor


class _Frequencies(NamedTuple):
    """Radians a position, [R / 2] float32, and what cos and sin are multiplied by."""

    values: Tensor
    attention_factor: float = 1.0


def rotary_tables(rope: Rope | None, head_dim: int, num_positions: int) -> RotaryTables:
    """Tables for a rope of `rope_types()`; None is no rotation at all. Raises KeyError for what the rope lacks."""
    if rope is None:
        empty = torch.empty((num_positions, 0), dtype=torch.float32)
        return RotaryTables(empty, empty)
    rotated = int(head_dim * float(rope.get("partial_rotary_factor") or 1.0))
    exponents = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    plain = 1.0 / torch.pow(float(rope["rope_theta"]), exponents)
    frequencies = _VARIANTS[rope["rope_type"]](plain, rope, num_positions)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.int64).float(), frequencies.values)
    factor = frequencies.attention_factor
    return RotaryTables(angles.cos() * factor, angles.sin() * factor)


def rope_types() -> tuple[str, ...]:
    """What `rope_type` may be, `original_max_position_embeddings` being set for those that read it."""
    return tuple(sorted(_VARIANTS))


def _default(plain: Tensor, rope: Rope, num_positions: int) -> _Frequencies:
    del rope, num_positions
    return _Frequencies(plain)


def _linear(plain: Tensor, rope: Rope, num_positions: int) -> _Frequencies:
    del num_positions
    return _Frequencies(plain / float(rope["factor"]))


def _llama3(plain: Tensor, rope: Rope, num_positions: int) -> _Frequencies:
    """Llama 3.1's rule: long waves are stretched by `factor`, short ones kept, those between blended."""
    del num_positions
    original = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    wavelengths = 2 * math.pi / plain
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    scaled = torch.where(wavelengths > original / low, plain / factor, plain)
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return _Frequencies(torch.where(between, blended, scaled))


def _yarn(plain: Tensor, rope: Rope, num_positions: int) -> _Frequencies:
    """arXiv 2309.00071: fast waves are kept, slow ones stretched, with a ramp over the dimensions between."""
    del num_positions
    factor = float(rope["factor"])
    low, high = (_yarn_dimension(plain, rope, name, turns) for name, turns in (("beta_fast", 32), ("beta_slow", 1)))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(plain) - 1)
    ramp = (torch.arange(len(plain), dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    stretched = torch.clamp(ramp, 0, 1)
    return _Frequencies(plain / factor * stretched + plain * (1 - stretched), _yarn_attention(rope, factor))


def _yarn_dimension(plain: Tensor, rope: Rope, name: str, default_turns: float) -> float:
    """The dimension whose wave turns so many times in the original context."""
    turns = rope.get(name) or default_turns
    waves = math.log(rope["original_max_position_embeddings"] / (turns * 2 * math.pi))
    return 2 * len(plain) * waves / (2 * math.log(rope["rope_theta"]))


def _yarn_attention(rope: Rope, factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    scales = (rope.get("mscale"), rope.get("mscale_all_dim"))
    above, below = scales if all(scales) else (1.0, 0.0)
    growth = math.log(factor) if factor > 1 else 0.0
    return (0.1 * float(above or 0.0) * growth + 1.0) / (0.1 * float(below or 0.0) * growth + 1.0)


def _longrope(plain: Tensor, rope: Rope, num_positions: int) -> _Frequencies:
    """arXiv 2402.13753: one factor for each dimension, for the original context or for beyond it."""
    original, factor = rope["original_max_position_embeddings"], float(rope["factor"])
    divisors = rope["long_factor" if num_positions > original else "short_factor"]
    attention = rope.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return _Frequencies(plain / torch.tensor(divisors, dtype=torch.float32), float(attention))


_VARIANTS: dict[str, Callable[[Tensor, Rope, int], _Frequencies]] = {
    "default": _default,
    "dynamic": _default,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}
