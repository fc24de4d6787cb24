"""What streaming costs: memory over a long lazy input, and engine steps beside a reader that is slow.

    python benchmarks/bench_stream.py [--prompts 100000] [--rounds 15]

Both run a random two-layer model, so that all that is not the model weighs as much as it can.

memory   prompts come from a generator, one token each; resident memory after 1,000 results against the end.
reader   the same requests again and again, in turn at random: nobody reads, or somebody sleeps 50 ms over every item.
         Steps a second from the first request's arrival to the last one's end; the ratio is that of neighbours.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.engine import LLM, SamplingParams
from tiny_model import save_tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator

WARM = 1000
SLEEP_S = 0.05


class Growth(NamedTuple):
    """Resident memory in MiB after the first results and at its highest later, and how fast it went."""

    warm_mib: float
    peak_mib: float
    prompts_s: float


def rss_mib() -> float:
    """Resident memory of this process; Linux."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096 / (1 << 20)


def memory_growth(llm: LLM, num_prompts: int, warm: int = WARM) -> Growth:
    """Run `num_prompts` different prompts through the lazy iterator, one token each."""
    prompts = (f"prompt number {number}" for number in range(num_prompts))
    warm_mib = peak_mib = 0.0
    began = time.perf_counter()
    for done, _ in enumerate(llm.generate_stream(prompts, SamplingParams(max_tokens=1), every_n=None), 1):
        if done == warm:
            warm_mib = rss_mib()
        if done % warm == 0:
            peak_mib = max(peak_mib, rss_mib())
    return Growth(warm_mib, peak_mib, num_prompts / (time.perf_counter() - began))


def steps_per_second(llm: LLM, prompts: list[str], params: SamplingParams, *, is_read: bool) -> float:
    """One run; the reader sleeps over every item until the engine is done, or comes only then."""
    before = llm.get_metrics()
    target = before.num_generation_tokens + len(prompts) * (params.max_tokens or 0)
    finished = []
    with llm.generate_stream(prompts, params) as stream:
        while llm.get_metrics().num_generation_tokens < target:
            if is_read:
                finished += [item for item in (next(stream),) if item.finished]
            time.sleep(SLEEP_S)
        finished += [item for item in stream if item.finished]
    began = min(item.metrics.arrival_time for item in finished)
    ended = max(item.metrics.finished_time or 0.0 for item in finished)
    return (llm.get_metrics().num_steps - before.num_steps) / (ended - began)


def reader_ratios(llm: LLM, rounds: int) -> Iterator[tuple[float, float]]:
    """Steps a second without and with the slow reader, pair by pair."""
    prompts = [f"{number} is the number of this prompt" for number in range(64)]
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    for _ in range(rounds):
        order = random.sample([False, True], 2)
        rates = {is_read: steps_per_second(llm, prompts, params, is_read=is_read) for is_read in order}
        yield rates[False], rates[True]


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100_000, help="length of the lazy input (100000)")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of runs with and without a slow reader (15)")
    return parser.parse_args()


def main() -> int:
    """Run both and print."""
    args = parse()
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_model(Path(folder))
        with LLM(model, dtype="float32", kv_cache_memory_bytes=16 << 20, enable_prefix_caching=False) as llm:
            growth = memory_growth(llm, args.prompts)
            print(f"memory   {args.prompts} prompts, {growth.prompts_s:.0f}/s: {growth.warm_mib:.0f} MiB after {WARM}, "
                  f"at most {growth.peak_mib:.0f} MiB later: +{growth.peak_mib - growth.warm_mib:.1f} MiB")  # fmt: skip
            pairs = list(reader_ratios(llm, args.rounds))
    alone, read = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratios = sorted(with_reader / without for without, with_reader in pairs)
    print(f"reader   {alone:.1f} steps/s unread, {read:.1f} with a reader that sleeps {SLEEP_S * 1e3:.0f} ms an item: "
          f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}, {len(ratios)} pairs)")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
