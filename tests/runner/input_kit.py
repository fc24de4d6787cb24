"""What tests of inputs share: a file, a job over it, and its rows as a worker would read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from streamrunner.runner.inputs import InputScan, read_range, scan_input
from streamrunner.runner.spec import JobSpec

if TYPE_CHECKING:
    from pathlib import Path


def spec_of(path: str, **sections: Any) -> JobSpec:
    source = {"path": path, **sections.pop("input", {})}
    return JobSpec.model_validate({"name": "t", "model": "m", "input": source, **sections})


def scan(folder: Path, name: str, content: bytes, **sections: Any) -> InputScan:
    (folder / name).write_bytes(content)
    return scan_path(folder, name, **sections)


def scan_path(folder: Path, path: str, **sections: Any) -> InputScan:
    return scan_input(spec_of(path, **sections), folder, folder / "data")


def rows_of(found: InputScan) -> list[tuple[int, Any]]:
    return [(row.line, json.loads(row.raw)) for one in found.ranges for row in read_range(one)]


def codes_of(found: InputScan) -> list[tuple[int, str]]:
    return [(error.line, error.code) for error in found.errors]
