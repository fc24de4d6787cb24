"""One worker process: says that it is ready, waits for a line on stdin, and works until the job has ended.

python -m workers_kit.process <folder of the run> <job id> <name>
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from streamrunner.engine.loop import EngineLoop
from streamrunner.engine.tokenizer import Tokenizer
from streamrunner.runner.job import JobContext
from streamrunner.runner.lease import LeaseKeeper
from streamrunner.runner.spec import JobSpec
from streamrunner.runner.worker import Worker
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog
from workers_kit.sleeper import SleepingCore


def job_of(folder: Path, job_id: str) -> JobContext:
    """The job that stands in `<folder>/job.json`."""
    spec = JobSpec.model_validate(json.loads((folder / "job.json").read_text()))
    return JobContext(job_id, JobKeys(job_id), spec, 7, folder, 0)


def work(folder: Path, job_id: str, name: str, step_s: float) -> None:
    """Load everything, wait for the start, work."""
    job = job_of(folder, job_id)
    tokenizer: Any = Tokenizer.load(folder / "model")
    core: Any = SleepingCore(job.spec.engine.max_num_seqs, step_s)
    loop = EngineLoop(core)
    loop.start()
    info = {"host": socket.gethostname(), "pid": os.getpid(), "fingerprint": {}}
    with EmbeddedServer(folder / "data") as server:
        log = JobLog(server, job.keys, name)
        lease = LeaseKeeper(name, JobLog(server, job.keys, name), info)
        print("ready", flush=True)
        sys.stdin.readline()
        joined = lease.join(log)
        worker = Worker(
            job, log=log, client=server.client(), lease=lease, loop=loop, tokenizer=tokenizer, max_model_len=4096,
            should_stop=lambda: False,
        )  # fmt: skip
        worker.run(joined)


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
