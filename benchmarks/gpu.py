"""The GPU lane: what `make kernels` cannot prove, on a machine with a card, in minutes and without a network.

    ops          every op against float64 on fresh inputs, in bfloat16, float16 and float32
    invariance   a row's bits alone, in a few and in many, in deterministic mode
    speed        each op's share of the measured copy bandwidth or matmul rate

Needs torch and Triton; runs from a checkout: `PYTHONPATH=.typing python benchmarks/gpu.py --json figures.json`.
`--device cpu --tiny` tries the script itself, on the CPU bodies.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch

from gpu_kit.cases import TINY, Sizes
from gpu_kit.checks import Finding, check_invariance, check_ops
from gpu_kit.speed import Timing, measure_rates, time_ops

SECTIONS = ("ops", "invariance", "speed")


def main() -> int:
    """Run the sections, write the figures, print a short table last; 1 if a check failed."""
    args = parse_arguments()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: try --device cpu --tiny to try the script itself", file=sys.stderr)
        return 2
    figures: dict[str, Any] = {"machine": machine(device), "seed": args.seed}
    findings: list[Finding] = []
    timings: list[Timing] = []
    for section in args.sections:
        began = time.monotonic()
        if section == "speed":
            figures["rates"], timings = run_speed(args, device)
        else:
            findings += run_checks(section, args, device)
        figures[f"{section}_s"] = round(time.monotonic() - began, 1)
        print(f"{section}: {figures[f'{section}_s']} s", file=sys.stderr)
    figures["checks"] = [{**one._asdict(), "good": one.is_good} for one in findings]
    figures["timings"] = [one._asdict() for one in timings]
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))
    print_table(figures["machine"], findings, timings)
    return 0 if all(one.is_good for one in findings) else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
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


def run_checks(section: str, args: argparse.Namespace, device: torch.device) -> list[Finding]:
    """One of the two sections that are right or wrong; failures are told at once."""
    sizes = TINY if args.tiny else Sizes()
    found = check_ops(sizes, device, args.seed) if section == "ops" else check_invariance(sizes, device)
    findings = []
    for one in found:
        findings.append(one)
        if not one.is_good:
            print(f"WRONG {one.name} {one.dtype}: {one.error:.2g}, allowed {one.limit:.2g}", file=sys.stderr)
    return findings


def run_speed(args: argparse.Namespace, device: torch.device) -> tuple[dict[str, float], list[Timing]]:
    """Rates of the card, then the ops."""
    sizes = {"size": 64, "copy_bytes": 1 << 20} if args.tiny else {}
    rates = measure_rates(device, **sizes)
    return rates._asdict(), list(time_ops(TINY if args.tiny else Sizes(), device, rates))


def print_table(about: dict[str, str], findings: list[Finding], timings: list[Timing]) -> None:
    """A line per check that is worst in its op, then a line per timing."""
    print(f"{about['card']} · torch {about['torch']} · triton {about['triton']} · {about['date']}")
    for one in findings:
        verdict = "ok   " if one.is_good else "WRONG"
        print(f"{verdict} {one.section:10} {one.name:26} {one.dtype:9} {one.error:9.2g} of {one.limit:.2g}")
    for timing in timings:
        product = f"{timing.of_matmul:5.0%} of matmul" if timing.of_matmul else ""
        print(f"{timing.name:26} {timing.time_ms:8.3f} ms {timing.of_copy:5.0%} of copy {product}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
