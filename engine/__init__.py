"""The model: scheduling, paged KV cache, forward pass, sampling, text. Knows no job, file format or Redis.

The names below are loaded when they are first asked for: whoever needs only `SamplingParams` never waits for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrunner.engine.errors import EngineError
    from streamrunner.engine.llm import LLM
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.request_output import CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from streamrunner.engine.stream import AsyncOutputStream, OutputStream
    from streamrunner.engine.structured_params import StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncOutputStream",
    "CompletionOutput",
    "EngineError",
    "Logprob",
    "OutputStream",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]
_MODULES = {
    "LLM": "llm",
    "EngineError": "errors",
    "SamplingParams": "params",
    "StructuredOutputsParams": "structured_params",
    "AsyncOutputStream": "stream",
    "OutputStream": "stream",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'request_output')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
