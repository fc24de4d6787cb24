"""The scripts of examples/engine run as they stand, with the tiny model of the engine's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples" / "engine").glob("*.py"))
sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def run(script: Path, model: Path) -> list[str]:
    """Lines it printed; random models write odd characters, so in UTF-8 whatever the locale."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    command = [sys.executable, str(script), str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs_and_says_something(script: Path, model: Path) -> None:
    assert len(run(script, model)) > 3
