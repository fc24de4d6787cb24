"""What a GGUF file says about its model and transformers does not read from it: sizes of heads, windows and caps, and
how positions are scaled. Without it such a model would be converted into another one, and nobody would be told.

Keys and tensors: the GGUF specification and llama.cpp's writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# llama.cpp knows by the number of layers which Gemma scales by the width of a head in the hidden state.
_GEMMA_27B_LAYERS = (46, 62)


class GgufFacts(NamedTuple):
    """fields: without the architecture in front, `attention.key_length`. factors: tensors that scale positions."""

    fields: Mapping[str, Any]
    factors: Mapping[str, list[float]]


def read_facts(source: Path) -> GgufFacts:
    """From the file's header and its tensors of factors."""
    from gguf import GGUFReader

    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    prefix = f"{architecture}."
    fields = {
        name.removeprefix(prefix): field.contents() for name, field in reader.fields.items() if name.startswith(prefix)
    }
    factors = {one.name: one.data.tolist() for one in reader.tensors if one.name in _FACTOR_TENSORS}
    return GgufFacts(fields, factors)


def complete_config(config: Any, facts: GgufFacts) -> None:
    """Add to what transformers made of the file. Raises ValueError for what its config has no words for."""
    fields = facts.fields
    for key, name in (
        ("attention.sliding_window", "sliding_window"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        if key in fields and hasattr(config, name):
            setattr(config, name, fields[key])
    _complete_heads(config, fields)
    if getattr(config, "rope_parameters", None):
        _rope_of(config).update(_scaling(config, facts))


def _complete_heads(config: Any, fields: Mapping[str, Any]) -> None:
    width = config.hidden_size // config.num_attention_heads
    size = fields.get("attention.key_length", getattr(config, "head_dim", None) or width)
    if fields.get("attention.value_length", size) != size:
        raise ValueError(f"heads of {size} numbers for keys and {fields['attention.value_length']} for values")
    if size != width or getattr(config, "head_dim", None):
        config.head_dim = size
    if hasattr(config, "query_pre_attn_scalar"):
        config.query_pre_attn_scalar = width if config.num_hidden_layers in _GEMMA_27B_LAYERS else size
    rotated = fields.get("rope.dimension_count", size)
    if getattr(config, "rope_parameters", None) and 0 < rotated < size:
        _rope_of(config)["partial_rotary_factor"] = rotated / size


def _rope_of(config: Any) -> dict[str, Any]:
    """Gemma 3 scales the positions of its layers without window only."""
    rope: dict[str, Any] = config.rope_parameters.get("full_attention", config.rope_parameters)
    return rope


def _scaling(config: Any, facts: GgufFacts) -> dict[str, Any]:
    fields, factors = facts.fields, facts.factors
    kind = fields.get("rope.scaling.type", "none")
    factor = float(fields.get("rope.scaling.factor", fields.get("rope.scale_linear", 1.0)))
    original = fields.get("rope.scaling.original_context_length", config.max_position_embeddings)
    if "rope_factors_long.weight" in factors:
        scaling = _by_dimension(factors["rope_factors_short.weight"], factors["rope_factors_long.weight"], original)
        return scaling | {"attention_factor": float(fields.get("rope.scaling.attn_factor", 1.0))}
    if "rope_freqs.weight" in factors:
        # Llama 3 writes what its rule comes to, one divisor a dimension, instead of the rule.
        own = factors["rope_freqs.weight"]
        return _by_dimension(own, own, original) | {"attention_factor": 1.0}
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    if kind not in ("none", "linear"):
        raise ValueError(f"rope.scaling.type {kind!r}")
    return {"rope_type": "linear", "factor": factor} if factor > 1.0 else {}


def _by_dimension(short: list[float], long: list[float], original: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": 1.0,
        "original_max_position_embeddings": original,
    }  # fmt: skip
