"""The converter process: a GGUF file as safetensors with its tokenizer (`python -m … SOURCE FOLDER`)."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from streamrunner.engine.gguf_config import complete_config, read_facts

if TYPE_CHECKING:
    from collections.abc import Iterable


def convert(source: Path, folder: Path) -> None:
    """Dequantise and save. Needs gguf and accelerate; raises whatever transformers raises."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    convert_model(source, folder)


def convert_model(source: Path, folder: Path) -> None:
    """The weights and config.json only."""
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    complete_config(config, read_facts(source))
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, config=config, dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )  # fmt: skip
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(dtype=smallest_exact_dtype(model.state_dict().values())).save_pretrained(folder)


def smallest_exact_dtype(weights: Iterable[torch.Tensor]) -> torch.dtype:
    """Half the bytes if no weight changes by it. Measured: Q4_1 (scale * q + minimum) needs all of float32."""
    kept = list(weights)
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(weight.to(dtype).float(), weight) for weight in kept):
            return dtype
    return torch.float32


def _end_with_the_parent() -> None:
    # Not sys.stdin: its lock, held by this thread, would abort the interpreter's own end.
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    """Convert argv[1] into argv[2]."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    convert(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
