"""The real `runner` command over inputs from the field, on a tiny random model and a private server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(sys.executable).with_name("runner")
sys.path.insert(0, str(Path(__file__).parent / "fuzz"))

_MAKE_TINY = """
import sys
from pathlib import Path
from tiny_model import save_tiny_model
save_tiny_model(Path(sys.argv[1]))
"""


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer model whose tokens are bytes; 256 positions."""
    folder = tmp_path_factory.mktemp("bytes")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    subprocess.run([sys.executable, "-c", _MAKE_TINY, str(folder)], check=True, env=env)
    return folder


@dataclass
class FieldJob:
    """A folder with a job file, run by the real command."""

    folder: Path
    data_dir: Path
    model: Path

    def write(self, path: str, content: bytes) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def run(
        self, verb: str, path: str, *options: str, piped: bytes = b"", **sections: Any
    ) -> subprocess.CompletedProcess[bytes]:
        self.write_job(path, **sections)
        command = [str(RUNNER), verb, "job.yaml", *options]
        done = subprocess.run(command, env=self._env, cwd=self.folder, capture_output=True, input=piped, timeout=150)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    @contextlib.contextmanager
    def started(self, verb: str, path: str, piped: bytes = b"", **sections: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A command that the test ends before it is done."""
        self.write_job(path, **sections)
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([str(RUNNER), verb, "job.yaml"], env=self._env, cwd=self.folder, **pipe)
        assert process.stdin is not None
        process.stdin.write(piped)
        process.stdin.close()
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def wait_for_a_result(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.results(torn=True):
            assert time.monotonic() < deadline, "no row was answered"
            time.sleep(0.01)

    def results(self, *, torn: bool = False) -> list[dict[str, Any]]:
        """The lines of the output; torn: while a line is being written."""
        path = self.folder / "out" / "results.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        return [json.loads(line) for line in (lines[:-1] if torn else lines) if line]

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, "RUNNER_DATA_DIR": str(self.data_dir), "PYTHONSAFEPATH": "1"}

    def write_job(self, path: str, **sections: Any) -> None:
        """The job file; `path` is its input."""
        source = {"path": path, **sections.pop("input", {})}
        spec = {
            "name": "t", "model": str(self.model), "input": source, "sampling": {"max_tokens": 1, "seed": 7},
            "outputs": [{"type": "jsonl", "path": "out/results.jsonl"}], **sections,
        }  # fmt: skip
        (self.folder / "job.yaml").write_text(json.dumps(spec), "utf-8")

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Any other verb, as text."""
        done = subprocess.run(
            [str(RUNNER), *words], env=self._env, cwd=self.folder, capture_output=True, text=True, timeout=150
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done


@pytest.fixture(scope="session")
def make_field(byte_model: Path) -> Callable[[Path, Path], FieldJob]:
    """`make_field(folder, data_dir)`, where several tests look at one run."""
    return lambda folder, data_dir: FieldJob(folder, data_dir, byte_model)


@pytest.fixture
def field(tmp_path: Path, data_dir: Path, byte_model: Path) -> FieldJob:
    """`field.write("rows.jsonl", b"…")`, then `field.run("submit", "rows.jsonl")`."""
    return FieldJob(tmp_path, data_dir, byte_model)
