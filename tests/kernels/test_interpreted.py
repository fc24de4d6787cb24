"""Runs what needs Triton's interpreter in processes of their own: the switch holds for a whole process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")


def run_interpreted(*tests: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.timeout(600)
def test_the_kernels_compute_what_they_promise() -> None:
    both = ("tests/kernels/test_logit_ops.py", "tests/kernels/test_products.py")
    run_interpreted("tests/kernels/gpu", *both)
