"""What a dtype costs: perplexity of a fixed text, and how long greedy texts agree with float32's.

The text is this repository's licence; greedy texts are those of the speed benchmark's first prompts. A first token that
differs changes all that follow, so what is counted is the share of tokens before it.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from streamrunner.engine.batch import pack
from streamrunner.engine.config import EngineConfig
from streamrunner.engine.convert import default_cache_dir, resolve_model
from streamrunner.engine.core import EngineCore
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.scheduler import Chunk
from streamrunner.engine.sequence import Sequence
from streamrunner.engine.tokenizer import Tokenizer
from streamrunner.engine.weights import load_model

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from workload import make_prompts

if TYPE_CHECKING:
    from streamrunner.engine.models.decoder import DecoderModel

MODEL = "smollm2-135m-instruct"
TEXT = Path(__file__).resolve().parents[1] / "LICENSE"
KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, int8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int8 weights": {"dtype": "bfloat16", "quantization": "int8"},
    "int8 weights and KV": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
}
BLOCK = 32


@torch.inference_mode()
def perplexity(model: DecoderModel, token_ids: list[int], window: int = 512) -> float:
    """exp of the mean negative log-likelihood over windows of the text."""
    losses: list[torch.Tensor] = []
    cache = model.new_cache(window // BLOCK, BLOCK)
    for start in range(0, len(token_ids) - window, window):
        part = token_ids[start : start + window]
        sequence = Sequence("text", part, len(part), SamplingParams(), 0, 0, 1, blocks=list(range(window // BLOCK)))
        batch = pack([Chunk(sequence, 0, window)], BLOCK)._replace(sample_rows=torch.arange(window - 1))
        losses.append(torch.nn.functional.cross_entropy(model.forward(batch, cache), torch.tensor(part[1:])))
    return math.exp(torch.stack(losses).mean())


def greedy(model: DecoderModel, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """The tokens of every prompt."""
    core = EngineCore(model, EngineConfig(max_model_len=1024, enable_prefix_caching=False))
    made: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
        core.add_request(str(index), prompt, params)
    while core.has_unfinished():
        for one in core.step().outputs:
            made[int(one.request_id)] += one.token_ids
    return made


def agreement(ours: list[list[int]], reference: list[list[int]]) -> float:
    """The share of tokens before the first one that differs."""
    same = 0
    for mine, theirs in zip(ours, reference, strict=True):
        differing = (index for index, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
        same += next(differing, len(mine))
    return same / sum(map(len, reference))


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir(), help="where converted models are kept")
    args = parser.parse_args()
    folder = resolve_model(MODEL, args.cache_dir).path
    tokenizer = Tokenizer.load(folder)
    text = tokenizer.encode(TEXT.read_text("utf-8"), add_special_tokens=False)
    prompts = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in make_prompts(args.requests)]
    reference: list[list[int]] | None = None
    print(f"{MODEL}: {len(text)} tokens of text, {args.requests} greedy texts of {args.new_tokens} tokens")
    print(f"{'':<24}{'perplexity':>12}{'greedy tokens as in float32':>32}")
    for name, settings in KINDS.items():
        model = load_model(folder, EngineConfig(max_model_len=1024, **settings))
        made = greedy(model, prompts, args.new_tokens)
        reference = reference or made
        print(f"{name:<24}{perplexity(model, text):12.3f}{agreement(made, reference):32.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
