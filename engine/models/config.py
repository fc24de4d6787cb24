"""A model's `config.json` in the engine's own terms; whatever the forward pass cannot do is refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_ROPE_TYPES = frozenset({"default", "linear", "llama3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and switches of a decoder of the Llama family."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: Mapping[str, Any]
    tied_embeddings: bool

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """Read `config.json`. Raises EngineError (`model_not_found`, `model_unsupported`)."""
        try:
            raw = json.loads((folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise EngineError("model_not_found", f"{folder} has no readable config.json: {error}") from error
        _check_supported(raw)
        heads = raw["num_attention_heads"]
        return cls(
            model_type=raw["model_type"],
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            max_position=raw["max_position_embeddings"],
            rms_norm_eps=raw["rms_norm_eps"],
            rope=_rope(raw),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        )

    def rotary_tables(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, [num_positions, head_dim / 2] float32."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        frequencies = _scaled(1.0 / torch.pow(float(self.rope["rope_theta"]), exponents), self.rope)
        angles = torch.outer(torch.arange(num_positions, dtype=torch.int64).float(), frequencies)
        return angles.cos(), angles.sin()


def _check_supported(raw: dict[str, Any]) -> None:
    kind = raw.get("model_type")
    if kind not in _FAMILIES:
        raise _unsupported(f"model_type {kind!r}; supported are {', '.join(sorted(_FAMILIES))}")
    if raw.get("hidden_act", "silu") != "silu":
        raise _unsupported(f"hidden_act {raw['hidden_act']!r}")
    window = raw.get("sliding_window") if raw.get("use_sliding_window", kind == "mistral") else None
    if window and window < raw["max_position_embeddings"]:
        raise _unsupported(f"a sliding window of {window} tokens")
    if raw.get("quantization_config"):
        raise _unsupported("quantised safetensors; use the GGUF file or the unquantised model")


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Both spellings: `rope_parameters` (transformers 5) and `rope_theta` beside `rope_scaling`."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    rope.setdefault("rope_theta", raw.get("rope_theta", 10000.0))
    kind = rope.setdefault("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise _unsupported(f"rope type {kind!r}; supported are {', '.join(sorted(_ROPE_TYPES))}")
    return rope


def _scaled(frequencies: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    if rope["rope_type"] == "linear":
        return frequencies / float(rope["factor"])
    if rope["rope_type"] == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3.1's rule: long waves are stretched by `factor`, short ones kept, those between blended."""
    original = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    wavelengths = 2 * math.pi / frequencies
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    scaled = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(between, blended, scaled)


def _unsupported(what: str) -> EngineError:
    return EngineError("model_unsupported", f"this model has {what}, which the engine cannot run yet")
