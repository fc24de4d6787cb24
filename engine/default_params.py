"""What a model's makers recommend for sampling, where a caller says nothing."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

# Names of generation_config.json, and ours where they differ.
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_params(folder: Path) -> SamplingParams:
    """Sampling by the folder's generation_config.json; a text may fill the context unless it says less.

    Raises EngineError (`model_unsupported`) if that file is no JSON or recommends what cannot be.
    """
    path = folder / "generation_config.json"
    try:
        found = json.loads(path.read_text("utf-8"))
        known = {field.name for field in fields(SamplingParams)}
        settings = {ours: found[name] for name, ours in _NAMES.items() if ours in known and found.get(name) is not None}
        return SamplingParams(**{"max_tokens": None, **settings})
    except FileNotFoundError:
        return SamplingParams(max_tokens=None)
    except (ValueError, AttributeError, TypeError, EngineError) as error:
        raise EngineError("model_unsupported", f"{path} cannot be used: {error}", "model") from error
