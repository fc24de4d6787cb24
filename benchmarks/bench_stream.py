"""What streaming costs: memory over a long lazy input, and engine steps beside a reader that is slow.

    python benchmarks/bench_stream.py [--prompts 100000] [--rounds 100]

Both run a random two-layer model, so that all that is not the model weighs as much as it can.

memory   prompts come from a generator, one token each; resident memory after 1,000 results against the end.
reader   the same requests again and again, in either order: one waits for finished results, one sleeps 50 ms over
         every item. Steps a second from the first request's arrival to the last one's end, and processor time a step,
         which other programs disturb less; ratios of neighbours, their median with its 95 % interval.
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

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

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


class Speed(NamedTuple):
    """Engine steps a second, and processor time of the whole process for each."""

    steps_s: float
    cpu_ms: float


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


def measure(llm: LLM, prompts: list[str], params: SamplingParams, *, is_slow: bool) -> Speed:
    """One run, with a reader that sleeps over every item, or one that waits for finished results."""
    before, cpu = llm.get_metrics(), time.process_time()
    target = before.num_generation_tokens + len(prompts) * (params.max_tokens or 0)
    finished = []
    with llm.generate_stream(prompts, params, every_n=1 if is_slow else None) as stream:
        while is_slow and llm.get_metrics().num_generation_tokens < target:
            finished += [item for item in (next(stream),) if item.finished]
            time.sleep(SLEEP_S)
        finished += [item for item in stream if item.finished]
    began = min(item.metrics.arrival_time for item in finished)
    ended = max(item.metrics.finished_time or 0.0 for item in finished)
    steps = llm.get_metrics().num_steps - before.num_steps
    return Speed(steps / (ended - began), (time.process_time() - cpu) / steps * 1e3)


def reader_pairs(llm: LLM, rounds: int) -> Iterator[tuple[Speed, Speed]]:
    """Without and with the slow reader, pair by pair, in either order."""
    prompts = [f"{number} is the number of this prompt" for number in range(64)]
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    for _ in range(rounds):
        order = random.sample([False, True], 2)
        found = {is_slow: measure(llm, prompts, params, is_slow=is_slow) for is_slow in order}
        yield found[False], found[True]


def median_interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median of sorted values."""
    reach = 0.98 * len(values) ** 0.5
    middle = (len(values) - 1) / 2
    return values[max(0, int(middle - reach))], values[min(len(values) - 1, int(middle + reach + 1))]


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100_000, help="length of the lazy input (100000)")
    parser.add_argument("--rounds", type=int, default=100, help="pairs of runs with and without a slow reader (100)")
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
            pairs = list(reader_pairs(llm, args.rounds))
    print(f"reader   sleeps {SLEEP_S * 1e3:.0f} ms an item, against one that waits for the end; {len(pairs)} pairs")
    for name, unit in (("steps_s", "steps/s"), ("cpu_ms", "ms CPU/step")):
        before, after = ([getattr(speed, name) for speed in speeds] for speeds in zip(*pairs, strict=True))
        ratios = sorted(slow / fast for fast, slow in zip(before, after, strict=True))
        low, high = median_interval(ratios)
        print(f"         {statistics.median(before):.2f} to {statistics.median(after):.2f} {unit}: "
              f"ratio {statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
