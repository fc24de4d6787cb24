"""The GPU lane: what `make kernels` cannot prove, on a machine with a card, in minutes and without a network.

    ops          every op against float64 on fresh inputs, in bfloat16, float16 and float32
    invariance   a row's bits alone, in a few and in many, in deterministic mode
    speed        each op's share of the measured copy bandwidth or matmul rate
    model        forward passes with random weights: against transformers, in any batch, and their share of the floor

Needs torch, Triton and, for `model`, transformers; runs from a checkout:
`PYTHONPATH=.typing python benchmarks/gpu.py --json figures.json`.
`--device cpu --tiny` tries the script itself, on the CPU bodies.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch

from gpu_kit.cases import TINY, Sizes
from gpu_kit.checks import Finding, check_invariance, check_ops
from gpu_kit.model import SHAPES
from gpu_kit.model_checks import ModelTiming, check_model, time_model
from gpu_kit.speed import Rates, Timing, measure_rates, time_ops

if TYPE_CHECKING:
    from collections.abc import Iterable

SECTIONS = ("ops", "invariance", "speed", "model")


def main() -> int:
    """Run the sections, write the figures, print a short table last; 1 if a check failed."""
    args = parse_arguments()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: try --device cpu --tiny to try the script itself", file=sys.stderr)
        return 2
    lane = Lane(args, device)
    for section in args.sections:
        began = time.monotonic()
        getattr(lane, section)()
        lane.figures[f"{section}_s"] = round(time.monotonic() - began, 1)
        print(f"{section}: {lane.figures[f'{section}_s']} s", file=sys.stderr)
    if args.json:
        Path(args.json).write_text(json.dumps(lane.as_json(), indent=1))
    lane.print_table()
    return 0 if all(one.is_good for one in lane.findings) else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--models", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes of a toy, for trying the script")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="of the inputs; fresh by default")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    return parser.parse_args()


def machine(device: torch.device) -> dict[str, str]:
    """What the figures belong to."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {"card": card, "torch": torch.__version__, "triton": triton_version(), "date": time.strftime("%Y-%m-%d")}


def triton_version() -> str:
    """Empty where Triton is not installed."""
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


class Lane:
    """What the sections have found so far."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.figures: dict[str, Any] = {"machine": machine(device), "seed": args.seed}
        self.findings: list[Finding] = []
        self._timings: list[Timing] = []
        self._model_timings: list[ModelTiming] = []
        self._args, self._device = args, device
        self._sizes = TINY if args.tiny else Sizes()

    def ops(self) -> None:
        """Every op against float64."""
        self._check(check_ops(self._sizes, self._device, self._args.seed))

    def invariance(self) -> None:
        """Bits that must not depend on the batch."""
        self._check(check_invariance(self._sizes, self._device))

    def speed(self) -> None:
        """Shares of the card's own rates."""
        self._timings = list(time_ops(self._sizes, self._device, self._rates))

    def model(self) -> None:
        """Forward passes; a model that does not fit the card is told and left out."""
        for name in self._args.models:
            self._check(check_model(name, self._device, tiny=self._args.tiny))
            try:
                self._model_timings += time_model(name, self._device, self._rates, tiny=self._args.tiny)
            except torch.OutOfMemoryError as error:
                print(f"{name} is not timed: {str(error).splitlines()[0]}", file=sys.stderr)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def as_json(self) -> dict[str, object]:
        """All figures."""
        return {
            **self.figures,
            "checks": [{**one._asdict(), "good": one.is_good} for one in self.findings],
            "timings": [one._asdict() for one in self._timings],
            "models": [one._asdict() for one in self._model_timings],
        }

    def print_table(self) -> None:
        """A line per check, then a line per timing."""
        about = self.figures["machine"]
        print(f"{about['card']} · torch {about['torch']} · triton {about['triton']} · {about['date']}")
        for one in self.findings:
            verdict = "ok   " if one.is_good else "WRONG"
            print(f"{verdict} {one.section:10} {one.name:26} {one.dtype:9} {one.error:9.2g} of {one.limit:.2g}")
        for timing in self._timings:
            product = f"{timing.of_matmul:5.0%} of matmul" if timing.of_matmul else ""
            print(f"{timing.name:32} {timing.time_ms:9.3f} ms {timing.of_copy:5.0%} of copy {product}".rstrip())
        for model in self._model_timings:
            rate = f"{model.tokens_per_s:10.0f} tokens/s {model.of_floor:5.0%} of the floor"
            print(f"{model.name:32} {model.time_ms:9.3f} ms {rate}")

    @functools.cached_property
    def _rates(self) -> Rates:
        sizes = {"size": 64, "copy_bytes": 1 << 20} if self._args.tiny else {}
        rates = measure_rates(self._device, **sizes)
        self.figures["rates"] = rates._asdict()
        return rates

    def _check(self, found: Iterable[Finding]) -> None:
        """Failures are told at once."""
        for one in found:
            self.findings.append(one)
            if not one.is_good:
                print(f"WRONG {one.name} {one.dtype}: {one.error:.2g}, allowed {one.limit:.2g}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
