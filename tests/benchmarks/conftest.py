"""The benchmarks are scripts, not a package: make their folder importable as a script would see it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
