"""A job whose private server runs out of disk, as its user sees it."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Bench = Any

ROWS = 24


@pytest.fixture
def small_disk(end_servers: Callable[[Path], None]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sr-") as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", folder], capture_output=True)
        if mounted.returncode:
            pytest.skip("only root may mount a small file system")
        yield Path(folder)
        end_servers(Path(folder))
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_stops_the_job_and_the_same_command_completes_it(
    bench: Bench, small_disk: Path, chat_row: Callable[..., str]
) -> None:
    bench.data_dir = small_disk
    bench.write_rows([chat_row(i, logprobs=True, top_logprobs=20) for i in range(ROWS)])
    bench.write_job(sampling={"temperature": 0.8, "seed": 7, "max_tokens": 60, "ignore_eos": True})
    stopped = bench.submit()
    assert stopped.returncode == 69, stopped.stderr
    [error] = [line for line in stopped.stderr.splitlines() if line.startswith("error:")]
    assert "make space there and run the same command again" in error
    assert error.endswith("[disk_full]")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert bench.submit().returncode == 0
    assert sorted(line["custom_id"] for line in bench.lines()) == sorted(f"n{i}" for i in range(ROWS))
    ended = [event["data"]["row"] for event in bench.events() if event["type"] == "request.completed"]
    assert sorted(ended) == list(range(ROWS))
