"""LoRA (arXiv 2106.09685), merged into the weights while they are loaded: W + scale * B @ A.

So it costs nothing afterwards, and what holds for a model without adapter (equal bits in any batch) holds with one.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from streamrunner.engine.errors import EngineError
from streamrunner.engine.lora_config import WEIGHTS_NAME, LoraConfig, lora_unsupported
from streamrunner.engine.models.config import text_weight_name

if TYPE_CHECKING:
    from pathlib import Path

_PREFIX = "base_model.model."
_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


class _Pair(NamedTuple):
    """a: [r, in] · b: [out, r]."""

    a: torch.Tensor
    b: torch.Tensor


class LoraAdapter:
    """Low-rank changes by module name, `model.layers.0.self_attn.q_proj`."""

    def __init__(self, config: LoraConfig, pairs: dict[str, _Pair]) -> None:
        self._config = config
        self._left = dict(pairs)

    @classmethod
    def load(cls, folder: Path) -> LoraAdapter:
        """Raises EngineError (`lora_not_found`, `lora_unsupported`)."""
        config = LoraConfig.load(folder)
        try:
            tensors = load_file(folder / WEIGHTS_NAME)
        except (OSError, SafetensorError) as error:
            raise EngineError(
                "lora_not_found", f"{folder / WEIGHTS_NAME} cannot be read: {error}", "lora_path"
            ) from error
        pairs = _pairs(tensors)
        for module, pair in pairs.items():
            if (pair.a.shape[0], pair.b.shape[1]) != (config.rank_of(module),) * 2:
                raise lora_unsupported(
                    f"rank {pair.a.shape[0]} in {module} where its config has {config.rank_of(module)}"
                )
        return cls(config, pairs)

    def merged(self, module: str, weight: torch.Tensor) -> torch.Tensor:
        """The weight with the adapter's change, computed in float32; the weight itself if there is none for it.

        weight: [out, in]. Raises EngineError (`lora_unsupported`) if the change has another shape.
        """
        pair = self._left.pop(module, None)
        if pair is None:
            return weight
        shape = (pair.b.shape[0], pair.a.shape[1])
        if shape != tuple(weight.shape):
            raise lora_unsupported(
                f"{module} of {shape} where the model has {tuple(weight.shape)}: it is of another model"
            )
        return weight.float() + self._config.scale_of(module) * (pair.b.float() @ pair.a.float())

    def merge_into(self, model: torch.nn.Module) -> None:
        """Change a model of transformers. Raises EngineError (`lora_unsupported`) for what is no linear layer of it."""
        for name in list(self._left):
            try:
                module = model.get_submodule(name)
            except AttributeError:
                continue
            if type(module) is torch.nn.Linear:
                weight = module.weight.detach()
                module.weight = torch.nn.Parameter(self.merged(name, weight).to(weight.dtype), requires_grad=False)
        self.check_all_merged()

    def check_all_merged(self) -> None:
        """Raises EngineError (`lora_unsupported`) if the adapter changes something that the model does not have."""
        if self._left:
            raise lora_unsupported(f"{_some(list(self._left))}, not a linear layer of this model")

    def warn_of_other_base(self, model_folder: Path) -> None:
        """Log a warning if nothing about the model's folder has the name that the adapter was trained on."""
        base = (self._config.base_model or "").rstrip("/").rpartition("/")[2]
        if base and not any(_plain(base) in _plain(name) for name in _names_of(model_folder)):
            logging.getLogger(__name__).warning(
                "the LoRA adapter was trained on %s, and %s does not look like it",
                self._config.base_model,
                model_folder,
            )


def _pairs(tensors: dict[str, torch.Tensor]) -> dict[str, _Pair]:
    sides: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found = _KEY.fullmatch(name.removeprefix(_PREFIX))
        if found is None or tensor.dim() != 2:
            raise lora_unsupported(f"the weight {name}")
        sides.setdefault(text_weight_name(found["module"]), {})[found["side"]] = tensor
    halves = [module for module, pair in sides.items() if len(pair) < 2]
    if halves or not sides:
        raise lora_unsupported(f"only half of {_some(halves)}" if halves else "no weights")
    return {module: _Pair(pair["A"], pair["B"]) for module, pair in sides.items()}


def _names_of(folder: Path) -> list[str]:
    """The folder's path (hub folders have the model's name in it), and what its files say about where it came from."""
    names = [str(folder.resolve())]
    for file, key in (("config.json", "_name_or_path"), ("converted.json", "source")):
        path = folder / file
        if path.exists():
            names.append(str(json.loads(path.read_text("utf-8")).get(key, "")))
    return names


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _some(modules: list[str]) -> str:
    return ", ".join(modules[:3]) + (f" and {len(modules) - 3} more" if len(modules) > 3 else "")
