from __future__ import annotations

from typing import TYPE_CHECKING

from bench_workers import Bench, kill, scaling

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_workers_share_a_job_and_a_killed_one_costs_no_row(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(data_dir, num_rows=96, step_s=0.001, tells=True)
    expected = bench.run(1)
    assert sorted(expected.texts) == list(range(96))
    [ratio] = scaling(bench, 2, 1)
    assert ratio > 0
    assert "rows each" in capsys.readouterr().out
    assert kill(bench, 2, expected.texts) == []
