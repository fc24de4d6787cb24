"""Output tokens per second, ours beside transformers' static batching: `make bench`.

Both run the same prompts in this process, in turn, on the same threads: medians and the ratio of pairs, since a
machine's speed drifts. Output tokens over wall time, prefill included, loading not. Greedy, a fixed number of tokens
each.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.convert import resolve_model
from streamrunner.engine.core import EngineCore
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.tokenizer import Tokenizer
from streamrunner.engine.weights import load_model, resolve_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = "smollm2-135m-instruct"
WORDS = [
    "river",
    "stone",
    "market",
    "teacher",
    "garden",
    "winter",
    "signal",
    "copper",
    "engine",
    "letter",
    "mountain",
    "bridge",
    "harbor",
    "planet",
    "forest",
    "music",
    "doctor",
    "village",
    "window",
    "history",
    "science",
    "painter",
    "kitchen",
    "captain",
    "diamond",
    "thunder",
    "library",
    "festival",
    "journey",
    "orange",
    "silver",
    "shadow",
]


def make_prompts(count: int) -> list[str]:
    """20 to 200 common words each, the same for every engine."""
    pick = random.Random(0)
    start = "Summarise the following notes in one paragraph: "
    return [start + " ".join(pick.choice(WORDS) for _ in range(pick.randint(20, 200))) for _ in range(count)]


def ours(folder: Path, prompts: list[list[int]], new_tokens: int) -> Callable[[], float]:
    """Seconds of one run of our engine; prefix reuse off, so that a second run does all the work again."""
    config = EngineConfig(max_model_len=1024, max_num_seqs=len(prompts), enable_prefix_caching=False)
    core = EngineCore(load_model(folder, config), config)
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)

    def run() -> float:
        began = time.perf_counter()
        for index, prompt in enumerate(prompts):
            core.add_request(str(index), prompt, params)
        made = 0
        while core.has_unfinished():
            made += sum(len(one.token_ids) for one in core.step().outputs)
        assert made == len(prompts) * new_tokens
        return time.perf_counter() - began

    return run


def static_batch(folder: Path, prompts: list[list[int]], new_tokens: int) -> Callable[[], float]:
    """Seconds of one `generate` of transformers over the whole batch, padded on the left."""
    from transformers import AutoModelForCausalLM

    dtype = resolve_dtype("auto")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.eval()
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    @torch.inference_mode()
    def run() -> float:
        began = time.perf_counter()
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            pad_token_id=0,
        )
        assert out.shape[1] == longest + new_tokens
        return time.perf_counter() - began

    return run


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64, help="output tokens of each request (64)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each engine, in turn (3)")
    cache = Path.home() / ".local" / "share" / "streamrunner" / "cache"
    parser.add_argument("--cache-dir", type=Path, default=cache, help="where converted models are kept")
    return parser.parse_args()


def main() -> int:
    """Run and print the table."""
    args = parse()
    files = resolve_model(MODEL, args.cache_dir)
    tokenizer = Tokenizer.load(files.path)
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in make_prompts(args.requests)]
    engines = {
        "streamrunner": ours(files.path, prompts, args.new_tokens),
        "transformers static batch": static_batch(files.path, prompts, args.new_tokens),
    }
    tokens = args.requests * args.new_tokens
    print(f"{args.requests} requests, {sum(map(len, prompts))} prompt tokens, {args.new_tokens} new tokens each")
    print(f"{resolve_dtype('auto')}, {torch.get_num_threads()} threads, {args.rounds} rounds in turn")
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(args.rounds):
        for name, run in engines.items():
            rates[name].append(tokens / run())
    for name, values in rates.items():
        spread = f"{min(values):.0f}-{max(values):.0f}"
        print(f"{name:<28}{statistics.median(values):8.1f} tok/s   ({spread})")
    mine, theirs = rates.values()
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    print(f"{'ratio':<28}{ratio:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
