"""How much one process can append: a job on the synthetic engine without a step time."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import redis

NUM_ROWS, ROWS_AT_ONCE, NUM_TOKENS = 4096, 256, 256


class Ceiling(NamedTuple):
    """tokens_s: from the first claim to the end. cpu_us: of the runner, a token, as the bytes in memory and on disk."""

    tokens: int
    tokens_s: float
    cpu_us: float
    memory_bytes: float
    aof_bytes: float

    def __str__(self) -> str:
        return (
            f"ceiling  {self.tokens:,} tokens of {ROWS_AT_ONCE} rows at once, every step in the log: "
            f"{self.tokens_s:,.0f} tokens/s, {self.cpu_us:.1f} µs of the runner's processor time a token\n"
            f"         step streams {self.memory_bytes:.1f} bytes of the server's memory and the whole log "
            f"{self.aof_bytes:.1f} bytes of its file, a token"
        )


def measure_ceiling(folder: Path) -> Ceiling:
    """Run the job by the real command; its tokens all stay, so that they can be weighed."""
    rows = [{"prompt": f"Say {index}."} for index in range(NUM_ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "ceiling", "model": "synthetic?step_ms=0", "input": {"path": "rows.jsonl"},
        "sampling": {"seed": 1, "max_tokens": NUM_TOKENS, "ignore_eos": True},
        "engine": {"max_num_seqs": ROWS_AT_ONCE}, "events": {"retention": "full"},
        "outputs": [{"path": "out.jsonl"}],
    }  # fmt: skip
    (folder / "job.yaml").write_text(json.dumps(spec))
    environment = {**os.environ, "RUNNER_DATA_DIR": str(folder / "data")}
    environment.pop("RUNNER_REDIS_URL", None)
    runner = Path(sys.executable).with_name("runner")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([runner, "submit", "job.yaml", "--quiet"], cwd=folder, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _weigh(folder, runner, environment, cpu_s)


def _weigh(folder: Path, runner: Path, environment: dict[str, str], cpu_s: float) -> Ceiling:
    subprocess.run([runner, "status", "last"], env=environment, check=True, capture_output=True)
    pin = folder / "data" / "server" / "server.json"
    path = pin.parent / json.loads(pin.read_text())["socket"]
    client: Any = redis.Redis(unix_socket_path=str(path), protocol=2, decode_responses=True)
    log = next(key for key in client.scan_iter("sr:*:log"))
    claimed = next(fields for _, fields in client.xrange(log) if fields["type"] == "range.claimed")
    ((_, ended),) = client.xrevrange(log, count=1)
    tokens = NUM_ROWS * NUM_TOKENS
    seconds = (int(ended["time"]) - int(claimed["time"])) / 1e3
    steps = sum(client.memory_usage(key, samples=0) for key in client.scan_iter("sr:*:steps:*"))
    aof = sum(file.stat().st_size for file in pin.parent.glob("**/*.aof"))
    return Ceiling(tokens, tokens / seconds, cpu_s / tokens * 1e6, steps / tokens, aof / tokens)
