"""Output tokens per second, ours beside others on the same work: `make bench-engine`.

Every engine is a process of its own, loaded once; they run in turn, so that a machine whose speed drifts drifts for
all. Greedy, 128 new tokens for each of 64 and of 256 requests, prefill included, loading not. Medians, and the median
ratio of neighbours. "linear layers alone" multiplies the same rows by the same packed weights and does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamrunner.engine.convert import default_cache_dir, resolve_model

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from engine_peers import NUM_THREADS, PEERS

MODEL = "smollm2-135m-instruct"
BASELINE = "transformers, static batch"
CEILING = "linear layers alone"


@dataclass
class Peer:
    """One engine's process and what it said."""

    name: str
    process: subprocess.Popen[str]
    load_s: float = 0.0
    peak_mib: float = 0.0
    rates: list[float] = field(default_factory=list)

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def run(self) -> None:
        """One round of the work."""
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        found = self.read()
        self.rates.append(found["tokens"] / found["seconds"])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.peak_mib = self.read()["peak_mib"]
        self.process.wait()


def start(name: str, folder: Path, count: int, new_tokens: int) -> Peer:
    """Load one engine."""
    script = Path(__file__).with_name("engine_peers.py")
    environment = {**os.environ, "OMP_NUM_THREADS": str(NUM_THREADS), "PYTHONPATH": str(script.parent)}
    process = subprocess.Popen(
        [sys.executable, str(script), name, str(folder), str(count), str(new_tokens)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    peer = Peer(name, process)
    peer.load_s = peer.read()["load_s"]
    return peer


def compare(folder: Path, names: list[str], count: int, args: argparse.Namespace) -> list[Peer]:
    """All engines on `count` requests, in turn."""
    peers = [start(name, folder, count, args.new_tokens) for name in names]
    for _ in range(args.rounds):
        for peer in peers:
            peer.run()
    for peer in peers:
        peer.end()
    return peers


def print_table(count: int, peers: list[Peer]) -> None:
    """One line for each engine."""
    rates = {peer.name: peer.rates for peer in peers}
    print(f"\n{count} requests{'':<21}{'tok/s':>8}{'range':>12}{'ratio':>8}{'of GEMM':>9}{'load s':>8}{'peak MiB':>10}")
    for peer in peers:
        spread = f"{min(peer.rates):.0f}-{max(peer.rates):.0f}"
        columns = [ratio(peer.rates, rates.get(BASELINE), "8.2f"), ratio(peer.rates, rates.get(CEILING), "9.0%")]
        median = statistics.median(peer.rates)
        print(f"{peer.name:<32}{median:8.0f}{spread:>12}{''.join(columns)}{peer.load_s:8.1f}{peer.peak_mib:10.0f}")


def ratio(mine: list[float], theirs: list[float] | None, form: str) -> str:
    """The median of the ratios of neighbouring runs."""
    if theirs is None:
        return " " * int(form.split(".")[0])
    return format(statistics.median(a / b for a, b in zip(mine, theirs, strict=True)), form)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--new-tokens", type=int, default=128, help="output tokens of each request (128)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each engine, in turn (3)")
    parser.add_argument("--engines", nargs="+", choices=PEERS, default=list(PEERS), metavar="NAME")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir(), help="where converted models are kept")
    return parser.parse_args()


def main() -> int:
    """Run and print the tables."""
    args = parse()
    folder = resolve_model(MODEL, args.cache_dir).path
    print(f"{MODEL}, {args.new_tokens} new tokens each, {NUM_THREADS} threads, {args.rounds} rounds in turn")
    for count in args.requests:
        print_table(count, compare(folder, args.engines, count, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
