"""A model's `config.json` in the engine's own terms; whatever the forward pass cannot do is refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.engine.errors import EngineError
from streamrunner.engine.models.rope import RotaryTables, rope_types, rotary_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from streamrunner.engine.models.rope import Rope

_GEMMA: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
}  # fmt: skip
# The families of the native path, with what a config.json means by leaving a key out.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4096},
    "qwen2": {"sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    "smollm3": {"rope_theta": 2e6, "no_rope_layer_interval": 4, "tie_word_embeddings": True},
    "phi3": {"rms_norm_eps": 1e-5},
    "gemma2": {
        **_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window_pattern": 2,
    },
    "gemma3_text": {
        **_GEMMA, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6, "vocab_size": 262208,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072,
    },
}  # fmt: skip
# Models that see images as well; their text part is one of the families, and runs without images.
_WITH_IMAGES = frozenset({"gemma3", "mistral3"})
_ACTIVATIONS = frozenset({"silu", "gelu_pytorch_tanh"})
_FULL, _SLIDING = "full_attention", "sliding_attention"
# What the vector loops need of a head and of a gate.
_HEAD_STEP, _GATE_STEP = 8, 16


class LayerConfig(NamedTuple):
    """What may differ from layer to layer. window: slots a token sees (0: all). rope: a name in `ropes`, or None."""

    window: int
    rope: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and switches of a decoder of the Llama family.

    centred_norms: weights are distances from one; sandwich_norms: the outputs of attention and MLP are normed as well
    (both Gemma). Scales and caps are factors; a cap of 0 is none.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    tied_embeddings: bool
    activation: str
    layers: tuple[LayerConfig, ...]
    ropes: Mapping[str, Rope]
    attention_scale: float
    embedding_scale: float
    attention_soft_cap: float
    logit_soft_cap: float
    centred_norms: bool
    sandwich_norms: bool

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """Read `config.json`. Raises EngineError (`model_not_found`, `model_unsupported`)."""
        given = _text_part(read_config(folder))
        kind = given.get("model_type", "")
        if kind not in _FAMILIES:
            raise _unsupported(f"model_type {kind!r}; supported are {', '.join(sorted(_FAMILIES))}")
        raw = {**_FAMILIES[kind], **given}
        _check_supported(raw)
        is_gemma = kind.startswith("gemma")
        heads, ropes = raw["num_attention_heads"], _ropes(raw)
        head_dim = raw.get("head_dim") or raw["hidden_size"] // heads
        return cls(
            model_type=kind,
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=_checked_multiple("head_dim", head_dim, _HEAD_STEP),
            max_position=_max_position(raw, ropes),
            rms_norm_eps=raw["rms_norm_eps"],
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            activation=_activation(raw),
            layers=_layers(raw),
            ropes=ropes,
            attention_scale=float(raw.get("query_pre_attn_scalar") or head_dim) ** -0.5,
            embedding_scale=raw["hidden_size"] ** 0.5 if is_gemma else 1.0,
            attention_soft_cap=float(raw.get("attn_logit_softcapping") or 0.0),
            logit_soft_cap=float(raw.get("final_logit_softcapping") or 0.0),
            centred_norms=is_gemma,
            sandwich_norms=is_gemma,
        )

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    def rotary_tables(self, num_positions: int) -> dict[str | None, RotaryTables]:
        """Tables of every rope that a layer names, None among them."""
        tables: dict[str | None, RotaryTables] = {}
        for name in {layer.rope for layer in self.layers}:
            rope = None if name is None else self.ropes[name]
            try:
                tables[name] = rotary_tables(rope, self.head_dim, num_positions)
            except KeyError as error:
                raise _unsupported(f"rope type {rope and rope['rope_type']!r} without {error}") from error
        return tables


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as it is. Raises EngineError (`model_not_found`)."""
    try:
        raw: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError("model_not_found", f"{folder} has no readable config.json: {error}") from error
    return raw


def is_native(raw: Mapping[str, Any]) -> bool:
    """Whether the model's type, or that of its text part, is one of the native path's."""
    return _text_part(raw).get("model_type") in _FAMILIES


def text_weight_name(name: str) -> str:
    """A weight's name in a model with images as the text model alone calls it: each release nests it elsewhere."""
    for nested in ("language_model.model.", "model.language_model."):
        if name.startswith(nested):
            return f"model.{name.removeprefix(nested)}"
    return name.removeprefix("language_model.")


def _text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    if raw.get("model_type") not in _WITH_IMAGES or "text_config" not in raw:
        return raw
    return {"quantization_config": raw.get("quantization_config"), **raw["text_config"]}


def _check_supported(raw: dict[str, Any]) -> None:
    _checked_multiple("intermediate_size", raw["intermediate_size"], _GATE_STEP)
    if raw.get("use_bidirectional_attention"):
        raise _unsupported("attention in both directions")
    if raw.get("quantization_config"):
        raise _unsupported("quantised safetensors; use the GGUF file or the unquantised model")


def _checked_multiple(name: str, value: int, step: int) -> int:
    if value % step:
        raise _unsupported(f"{name} {value}; it must be a multiple of {step}")
    return value


def _activation(raw: Mapping[str, Any]) -> str:
    name = str(raw.get("hidden_activation") or raw.get("hidden_act") or "silu")
    if name not in _ACTIVATIONS:
        raise _unsupported(f"hidden_act {name!r}; supported are {', '.join(sorted(_ACTIVATIONS))}")
    return name


# ── layers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _layers(raw: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    kinds = _layer_types(raw)
    window = raw.get("sliding_window") or 0
    if "max_window_layers" in raw or raw["model_type"] == "smollm3":
        window = window if raw.get("use_sliding_window") else 0
    two_ropes = raw["model_type"] == "gemma3_text"
    has_rope = _has_rope(raw)
    layers = []
    for kind, rotated in zip(kinds, has_rope, strict=True):
        rope = (kind if two_ropes else _FULL) if rotated else None
        layers.append(LayerConfig(window if kind == _SLIDING else 0, rope))
    return tuple(layers)


def _layer_types(raw: Mapping[str, Any]) -> list[str]:
    count = raw["num_hidden_layers"]
    # Mistral and Phi-3 know one window for all layers and no types.
    if raw["model_type"] in ("mistral", "phi3"):
        return [_SLIDING] * count
    given: list[str] | None = raw.get("layer_types")
    kinds = given[:count] if given is not None else [_default_layer_type(raw, index) for index in range(count)]
    odd = sorted(set(kinds) - {_FULL, _SLIDING})
    if odd or len(kinds) < count:
        raise _unsupported(f"layer_types with {', '.join(odd) or f'only {len(kinds)} entries for {count} layers'}")
    return kinds


def _default_layer_type(raw: Mapping[str, Any], index: int) -> str:
    if "sliding_window_pattern" in raw:
        slides = bool((index + 1) % raw["sliding_window_pattern"])
    elif "max_window_layers" in raw:
        slides = index >= raw["max_window_layers"]
    else:
        slides = raw["model_type"] == "smollm3" and not _has_rope(raw)[index]
    return _SLIDING if slides else _FULL


def _has_rope(raw: Mapping[str, Any]) -> list[bool]:
    """SmolLM3 leaves positions out of some layers."""
    count = raw["num_hidden_layers"]
    interval = raw.get("no_rope_layer_interval")
    if interval is None:
        return [True] * count
    given = raw.get("no_rope_layers")
    return [bool(given[index] if given else (index + 1) % interval) for index in range(count)]


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _ropes(raw: Mapping[str, Any]) -> dict[str, Rope]:
    """By layer type. Both spellings: `rope_parameters` (transformers 5) and `rope_theta` beside `rope_scaling`."""
    given = raw.get("rope_parameters") or {}
    if raw["model_type"] != "gemma3_text":
        return {_FULL: _rope(raw, given or raw.get("rope_scaling"), raw.get("rope_theta", 10000.0))}
    full, sliding = given.get(_FULL) or raw.get("rope_scaling"), given.get(_SLIDING)
    return {_FULL: _rope(raw, full, raw["rope_theta"]), _SLIDING: _rope(raw, sliding, raw["rope_local_base_freq"])}


def _rope(raw: Mapping[str, Any], given: Mapping[str, Any] | None, theta: float) -> dict[str, Any]:
    rope = {name: value for name, value in (given or {}).items() if value is not None}
    rope.setdefault("rope_theta", theta)
    rope.setdefault("partial_rotary_factor", raw.get("partial_rotary_factor"))
    kind = rope.setdefault("rope_type", rope.get("type", "default"))
    # Phi-3's first checkpoints call it so.
    if raw["model_type"] == "phi3" and kind in ("su", "yarn"):
        kind = rope["rope_type"] = "longrope"
    if kind not in rope_types():
        raise _unsupported(f"rope type {kind!r}; supported are {', '.join(rope_types())}")
    longest = raw["max_position_embeddings"]
    if raw.get("original_max_position_embeddings"):
        rope["original_max_position_embeddings"] = raw["original_max_position_embeddings"]
    original = rope.setdefault("original_max_position_embeddings", longest)
    if kind in ("yarn", "longrope"):
        rope.setdefault("factor", longest / original)
    return rope


def _max_position(raw: Mapping[str, Any], ropes: Mapping[str, Rope]) -> int:
    """YaRN is often switched on in a config.json that still tells the original context."""
    longest: int = raw["max_position_embeddings"]
    for rope in ropes.values():
        if rope["rope_type"] == "yarn":
            longest = max(longest, int(rope["factor"] * rope["original_max_position_embeddings"]))
    return longest


def _unsupported(what: str) -> EngineError:
    return EngineError("model_unsupported", f"this model has {what}, which the engine cannot run yet")
