"""What is done to a running job, one function a kind of fault. Everything else about a trial is in `trial.py`."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from chaos_kit.processes import kill_hard

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from chaos_kit.trial import Trial

# A worker that stops for longer than this has lost its lease.
_LEASE_S = 15.0
_PAUSE_S = 1.0
_LOW_MEMORY_S = 1.5


class Fault(NamedTuple):
    """One row of the table.

    workers: runner processes at work. times: how often in one job. loses_tail: the log's acknowledged end may go, and
    with it results that were written; everything must be there again at the job's end all the same.
    """

    name: str
    do: Callable[[Trial, random.Random], list[int]]
    workers: int = 1
    times: int = 6
    loses_tail: bool = False
    at_edges: bool = False


def kill_runner(trial: Trial, rng: random.Random) -> list[int]:
    """SIGKILL one of the runners; returns the dead."""
    victim = rng.choice(trial.running)
    kill_hard(victim.pid)
    victim.wait()
    return [victim.pid]


def kill_server(trial: Trial, _rng: random.Random) -> list[int]:
    """SIGKILL the private server: a runner starts it again."""
    kill_hard(trial.server_pid)
    return []


def kill_both(trial: Trial, rng: random.Random) -> list[int]:
    """SIGKILL server and runner, in either order."""
    order = [kill_server, kill_runner]
    rng.shuffle(order)
    return [pid for kill in order for pid in kill(trial, rng)]


def stop_server(trial: Trial, _rng: random.Random) -> list[int]:
    """Shut the server down in order, under load."""
    os.kill(trial.server_pid, signal.SIGTERM)
    return []


def freeze_worker(trial: Trial, rng: random.Random) -> list[int]:
    """SIGSTOP a worker until others have taken its rows, then let it go on: a zombie."""
    victim = rng.choice(trial.running)
    os.kill(victim.pid, signal.SIGSTOP)
    time.sleep(_LEASE_S + rng.uniform(0.5, 2.0))
    os.kill(victim.pid, signal.SIGCONT)
    return []


def no_memory(trial: Trial, _rng: random.Random) -> list[int]:
    """The server refuses writes for want of memory, then takes them again."""
    client = trial.client
    client.config_set("maxmemory", 1)
    time.sleep(_LOW_MEMORY_S)
    client.config_set("maxmemory", 0)
    return []


def pause_kill_resume(trial: Trial, rng: random.Random) -> list[int]:
    """Pause the job, SIGKILL its runner if it has not gone by itself, resume."""
    trial.command("pause")
    time.sleep(rng.uniform(0.0, _PAUSE_S))
    victims = kill_runner(trial, rng) if trial.running else []
    trial.command("resume")
    return victims


def _damage(trial: Trial, rng: random.Random, change: Callable[[bytes, int], bytes]) -> list[int]:
    """SIGKILL both, then change the last bytes of the append-only file, as a dying disk does."""
    victims = kill_both(trial, rng)
    time.sleep(0.1)
    file = max(trial.data_dir.glob("server/**/*.incr.aof"), key=lambda one: one.stat().st_mtime)
    content = file.read_bytes()
    file.write_bytes(change(content, rng.randrange(1, min(3000, len(content)))))
    return victims


def cut_log(trial: Trial, rng: random.Random) -> list[int]:
    """The last bytes are gone."""
    return _damage(trial, rng, lambda content, count: content[:-count])


def zero_log(trial: Trial, rng: random.Random) -> list[int]:
    """The last bytes are zeros."""
    return _damage(trial, rng, lambda content, count: content[:-count] + bytes(count))


def garble_log(trial: Trial, rng: random.Random) -> list[int]:
    """The last bytes are noise."""
    return _damage(trial, rng, lambda content, count: content[:-count] + rng.randbytes(count))


FAULTS = (
    Fault("SIGKILL of the runner", kill_runner),
    Fault("SIGKILL of the runner while it starts, validates or exports", kill_runner, at_edges=True),
    Fault("SIGKILL of the server", kill_server),
    Fault("SIGKILL of runner and server", kill_both),
    Fault("SIGKILL of a random worker out of 3", kill_runner, workers=3),
    Fault("SIGSTOP of a worker out of 3 beyond its lease, then SIGCONT", freeze_worker, workers=3, times=1),
    Fault("SIGKILL of one of two runners on one data dir", kill_runner, workers=2),
    Fault("server shut down under load", stop_server),
    Fault("server out of memory for 1.5 s", no_memory, times=3),
    Fault("pause, SIGKILL, resume", pause_kill_resume, times=3),
    Fault("SIGKILL of both, log's end cut by up to 3,000 bytes", cut_log, times=3, loses_tail=True),
    Fault("SIGKILL of both, log's end zeroed", zero_log, times=3, loses_tail=True),
    Fault("SIGKILL of both, log's end garbled", garble_log, times=3, loses_tail=True),
)
