"""The table of reports names tests that exist, and every report's test stands in it."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_every_named_test_exists() -> None:
    named = NAMED.findall((HERE / "README.md").read_text("utf-8"))
    assert len(named) > 50
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (TESTS / path).read_text("utf-8")]
    assert missing == []


def test_every_report_with_a_number_stands_in_the_table() -> None:
    named = {name for _, name in NAMED.findall((HERE / "README.md").read_text("utf-8"))}
    written = {
        name for path in HERE.glob("test_*.py") for name in re.findall(r"def (test_\d+_\w+)", path.read_text("utf-8"))
    }
    assert written <= named
