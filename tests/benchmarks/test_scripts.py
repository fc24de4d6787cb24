"""Every benchmark starts as the Makefile starts it: in Python's safe path mode, which leaves a script's folder out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(
    path.name for path in [*FOLDER.glob("bench_*.py"), *FOLDER.glob("chaos*.py"), FOLDER / "kernels_gate.py"]
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_says_what_it_is_for(script: str) -> None:
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--help"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout
