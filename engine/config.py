"""What a user may set about the engine; names and defaults are vLLM's where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamrunner.engine.errors import EngineError

# A CPU prefills some hundred tokens a second: a small budget brings the first tokens of a job early.
_CPU_BATCHED_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes and limits of one engine. Raises EngineError (`invalid_config`).

    max_num_batched_tokens: tokens computed in one step; None is the device's default (CPU 256).
    kv_cache_memory_bytes: memory of the paged cache. block_size: tokens a page.
    lora_path: a LoRA adapter in PEFT's format, folder or hub id, that is merged into the weights when they are loaded.
    kv_cache_dtype: "auto" is the weights' dtype; "int8" halves the cache. quantization: "int8" weights, or None.
    What both cost in accuracy: docs/performance.md.
    deterministic: "auto" and True are the same on CPU, where it costs nothing measurable; False is not offered there.
    """

    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int = 2 << 30
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    quantization: Literal["int8"] | None = None
    block_size: int = 32
    enable_prefix_caching: bool = True
    deterministic: bool | Literal["auto"] = "auto"
    lora_path: str | None = None

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu"):
            raise EngineError(
                "invalid_config", f"device {self.device!r} is not supported yet: use auto or cpu", "device"
            )
        for name, allowed in (("kv_cache_dtype", ("auto", "int8")), ("quantization", (None, "int8"))):
            if getattr(self, name) not in allowed:
                names = " or ".join(map(str, allowed))
                raise EngineError("invalid_config", f"{name} is {getattr(self, name)!r}, it must be {names}", name)
        if self.deterministic is False:
            raise EngineError("invalid_config", "on CPU the engine is always deterministic: drop it", "deterministic")
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_cache_memory_bytes", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EngineError("invalid_config", f"{name} is {value}, it must be at least 1", name)
        if self.block_size % 16:
            raise EngineError(
                "invalid_config", f"block_size is {self.block_size}, it must be a multiple of 16", "block_size"
            )

    @property
    def batched_tokens(self) -> int:
        """The token budget of a step; never below what one decode step of all sequences needs."""
        return max(self.max_num_batched_tokens or _CPU_BATCHED_TOKENS, self.max_num_seqs)
