"""A LoRA adapter on disk: where it is, and what its `adapter_config.json` asks for. Read without torch.

The files are PEFT's: `adapter_config.json` and `adapter_model.safetensors`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
# What training and saving need to know and computing does not.
_HARMLESS = frozenset({
    "auto_mapping", "base_model_name_or_path", "revision", "task_type", "peft_type", "peft_version", "inference_mode",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout", "eva_config",
    "runtime_config", "megatron_core", "qalora_group_size", "ensure_weight_tying",
})  # fmt: skip
_READ = frozenset({"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights"})
_NAMED = {"use_dora": "DoRA", "modules_to_save": "whole modules beside it (modules_to_save)"}
# Others change the base weights when training starts, so that the adapter means nothing without that change.
_INITS = (None, True, False, "gaussian", "eva")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Rank and scale of each module, as PEFT computes them. base_model: what the adapter was trained on."""

    rank: int
    alpha: float
    rank_stabilised: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    base_model: str | None

    @classmethod
    def load(cls, folder: Path) -> LoraConfig:
        """Raises EngineError (`lora_not_found`, `lora_unsupported`), naming what cannot be merged."""
        raw = _read(folder)
        _check(raw)
        return cls(
            rank=raw.get("r", 8),
            alpha=raw.get("lora_alpha", 8),
            rank_stabilised=bool(raw.get("use_rslora")),
            rank_pattern=raw.get("rank_pattern") or {},
            alpha_pattern=raw.get("alpha_pattern") or {},
            base_model=raw.get("base_model_name_or_path"),
        )

    def rank_of(self, module: str) -> int:
        """The rank of one module, `model.layers.0.self_attn.q_proj`."""
        return int(_of_module(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What B @ A is multiplied by: alpha / r, or alpha / sqrt(r) if rank-stabilised (arXiv 2312.03732)."""
        rank = self.rank_of(module)
        alpha = float(_of_module(self.alpha_pattern, module, self.alpha))
        return alpha / math.sqrt(rank) if self.rank_stabilised else alpha / rank


def resolve_adapter(name: str, base: Path | None = None) -> Path:
    """The adapter's folder: a local one, relative to `base`, or a hub id. Raises EngineError (`lora_not_found`)."""
    path = (base or Path()) / Path(name).expanduser()
    folder = path if path.is_dir() else _from_hub(name)
    for needed in (CONFIG_NAME, WEIGHTS_NAME):
        if not (folder / needed).is_file():
            pickle = f" but {_PICKLE}, a pickle that can run code" if (folder / _PICKLE).exists() else ""
            raise EngineError(
                "lora_not_found", f"{folder} has no {needed}{pickle}: save the adapter with PEFT as safetensors",
                "lora_path",
            )  # fmt: skip
    return folder


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=[CONFIG_NAME, WEIGHTS_NAME]))
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise EngineError(
            "lora_not_found", f"adapter {name!r} is no folder, and the hub does not give it: {reason}", "lora_path"
        ) from error


def _read(folder: Path) -> dict[str, Any]:
    try:
        raw = json.loads((folder / CONFIG_NAME).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError("lora_not_found", f"{folder / CONFIG_NAME} cannot be read: {error}", "lora_path") from error
    if not isinstance(raw, dict):
        raise lora_unsupported("an adapter_config.json that is no object")
    return raw


def _check(raw: Mapping[str, Any]) -> None:
    if raw.get("peft_type", "LORA") != "LORA":
        raise lora_unsupported(f"peft_type {raw['peft_type']!r}")
    for name, value in raw.items():
        # An option that is set and unknown here would change the result silently.
        if name not in _HARMLESS and name not in _READ and value and value != "none":
            raise lora_unsupported(_NAMED.get(name, f"{name}: {json.dumps(value)[:80]}"))
    if raw.get("init_lora_weights") not in _INITS:
        raise lora_unsupported(
            f"init_lora_weights {raw['init_lora_weights']!r}, which changed the base model's weights"
        )
    ranks = [raw.get("r", 8), *(raw.get("rank_pattern") or {}).values()]
    if not all(isinstance(rank, int) and rank > 0 for rank in ranks):
        raise lora_unsupported(f"r {raw.get('r')!r}, which is no rank")


def _of_module(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """PEFT's rule: the first key that matches the end of the module's name, as a regular expression."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def lora_unsupported(what: str) -> EngineError:
    """The error for an adapter with something that cannot be merged."""
    return EngineError("lora_unsupported", f"this LoRA adapter has {what}, which the engine cannot merge", "lora_path")
