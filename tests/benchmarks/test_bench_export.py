"""The export benchmark in small: it fills a real log, and every output it times has every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench_export import OUTPUTS, run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_small_run_measures_everything(data_dir: Path, tmp_path: Path) -> None:
    rates = run(data_dir, 150, 10, tmp_path)
    assert [rate.what.split()[0] for rate in rates] == ["fill", "fold", *(name for name, _ in OUTPUTS)]
    assert (tmp_path / "results.jsonl").read_bytes().count(b"\n") == 150
    assert all(rate.rows_s > 0 for rate in rates)
