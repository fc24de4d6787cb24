"""Engine options by keyword, with a helpful word for those that only other engines have."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a vLLM user may pass out of habit, and what to do about it here.
_ELSEWHERE = {
    "gpu_memory_utilization": "the cache is sized by kv_cache_memory_bytes",
    "swap_space": "preempted sequences are computed again, nothing is swapped",
    "tensor_parallel_size": "an engine runs on one device; more workers share a job (runner worker)",
    "pipeline_parallel_size": "an engine runs on one device; more workers share a job (runner worker)",
    "enable_lora": "name the adapter by lora_path",
    "max_lora_rank": "drop it; any rank is merged",
    "trust_remote_code": "code that comes with a model is never run",
    "tokenizer": "the tokenizer is the one in the model's folder",
    "enforce_eager": "drop it",
    "disable_log_stats": "drop it; figures are in get_metrics()",
}


def engine_config(options: Mapping[str, Any]) -> EngineConfig:
    """Raises EngineError (`invalid_config`) for an unknown option or a value out of range."""
    known = [field.name for field in fields(EngineConfig)]
    for name in options:
        if name not in known:
            raise EngineError("invalid_config", f"there is no engine option {name!r}: {_remedy(name, known)}", name)
    return EngineConfig(**options)


def _remedy(name: str, known: list[str]) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
