"""Engines on the same work, each in a process of its own: `python engine_peers.py NAME FOLDER COUNT NEW_TOKENS`.

Talks in JSON lines: what loading took first, then the seconds of one run for every line it reads, and at the end of its
input the most memory it ever had. A process that waits for a line takes no processor time from the one that runs.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload import make_prompts

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_THREADS = 2
MAX_MODEL_LEN = 1024


def streamrunner(folder: str, count: int, new_tokens: int, **settings: Any) -> Callable[[], int]:
    """Ours: greedy, without prefix reuse, so that a second run does all the work again."""
    from streamrunner.engine import LLM, SamplingParams

    llm = LLM(folder, max_model_len=MAX_MODEL_LEN, max_num_seqs=count, enable_prefix_caching=False, **settings)
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    prompts = make_prompts(count)

    def run() -> int:
        return sum(len(one.outputs[0].token_ids) for one in llm.generate(prompts, params))

    return run


def streamrunner_int8(folder: str, count: int, new_tokens: int) -> Callable[[], int]:
    """Ours with int8 weights, keys and values."""
    return streamrunner(folder, count, new_tokens, kv_cache_dtype="int8", quantization="int8")


def transformers(folder: str, count: int, new_tokens: int) -> Callable[[], int]:
    """transformers' `generate` over the whole batch at once, padded on the left, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(NUM_THREADS)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    batch = tokenizer(make_prompts(count), return_tensors="pt", padding=True, add_special_tokens=False)
    settings = {"do_sample": False, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens}

    @torch.inference_mode()
    def run() -> int:
        out = model.generate(**batch, **settings, pad_token_id=tokenizer.pad_token_id)
        return int(count * (out.shape[1] - batch["input_ids"].shape[1]))

    return run


def gemm_ceiling(folder: str, count: int, new_tokens: int) -> Callable[[], int]:
    """Nothing but the linear layers of the same work, packed: what no engine on this machine can be faster than."""
    import torch

    from streamrunner.engine.config import EngineConfig
    from streamrunner.engine.models.llama import LlamaModel
    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.engine.weights import load_model

    torch.set_num_threads(NUM_THREADS)
    model = load_model(Path(folder), EngineConfig(max_model_len=MAX_MODEL_LEN))
    assert isinstance(model, LlamaModel)
    tokenizer = Tokenizer.load(Path(folder))
    num_prompt_tokens = sum(len(tokenizer.encode(text)) for text in make_prompts(count))
    layers = [part for layer in model.layers for part in (layer.qkv, layer.o, layer.gate_up, layer.down)]

    @torch.inference_mode()
    def multiply(parts: list[Any], rows: int) -> None:
        for part in parts:
            part(torch.zeros(rows, part.in_features, dtype=part.dtype))

    def run() -> int:
        for _ in range(num_prompt_tokens // 256):
            multiply(layers, 256)
        multiply(layers, num_prompt_tokens % 256 or 1)
        for _ in range(new_tokens):
            multiply([*layers, model.lm_head], count)
        return count * new_tokens

    return run


PEERS = {
    "streamrunner": streamrunner,
    "streamrunner, int8": streamrunner_int8,
    "transformers, static batch": transformers,
    "linear layers alone": gemm_ceiling,
}


def main() -> int:
    """Load, then run once for each line."""
    name, folder, count, new_tokens = sys.argv[1:]
    began = time.perf_counter()
    run = PEERS[name](folder, int(count), int(new_tokens))
    print(json.dumps({"load_s": time.perf_counter() - began}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        made = run()
        print(json.dumps({"seconds": time.perf_counter() - began, "tokens": made}), flush=True)
    print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
