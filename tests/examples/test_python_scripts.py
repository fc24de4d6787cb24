"""The scripts of examples/python run as they stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, WorkerLease

if TYPE_CHECKING:
    from streamrunner.sinks.embedded.server import EmbeddedServer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"


def run(script: str, data_dir: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "PYTHONUTF8": "1", "RUNNER_DATA_DIR": str(data_dir)}
    command = [sys.executable, "-P", str(FOLDER / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def ended_job(embedded: EmbeddedServer) -> str:
    """A row that came two tokens far before its job was cancelled."""
    keys = JobKeys("job_01FOLLOW")
    log = JobLog(embedded, keys, "t")
    embedded.client().xadd("sr:jobs", {"job": keys.job_id, "name": "capitals"})
    log.submit({"name": "capitals", "rows": 1, "ranges": 1, "spec": {}}, 1, [{"first": 0, "count": 1}])
    lease = WorkerLease("w", log.join("w", "token", {"host": "h", "pid": 1, "fingerprint": {}})["epoch"], "token")
    for at, text in enumerate(("The", " end")):
        step = json.dumps([[0, 1, 0, at, [at], text]]).encode()
        log.flush(lease, Flush(at + 1, step, "", (), ()))
    log.control("c", "cancel")
    log.end("cancelled", "by request")
    return keys.job_id


def test_follow(ended_job: str, data_dir: Path) -> None:
    assert ended_job
    shown = run("follow.py", data_dir, "capitals")
    assert shown[0].strip() == "job.submitted"
    assert "0.0: 'The'" in shown
    assert "0.0: 'The end'" in shown
    assert shown[-1].strip() == "ended"


def test_submit_then_dashboard(data_dir: Path, tmp_path: Path) -> None:
    from tiny_model import save_tiny_model

    shown = run("submit.py", data_dir, str(save_tiny_model(tmp_path)))
    assert [line.split()[0] for line in shown[:-1]] == ["France", "Japan", "Peru"]
    assert shown[-1].endswith("completed, 3 completed of 3>")
    looked = run("dashboard.py", data_dir, "capitals")
    assert {"France done", "Japan done", "Peru done"} <= set(looked)
    assert looked[-1] == shown[-1]
