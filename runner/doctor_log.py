"""The log: the data dir with its disk and its private server, or the server of a URL; jobs that nobody works on."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from typing import TYPE_CHECKING, Any

from streamrunner.runner.doctor import Finding
from streamrunner.sinks.embedded.host import check_filesystem, filesystem_of, this_host
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_GIB = 1 << 30
_LITTLE, _TOO_LITTLE = 2 * _GIB, 100 << 20
_PINGS = 20
_SLOW_MS = 5.0
_SKEW_S = 2.0
_FULL = 0.8
_RECENT_JOBS = 50
_OPEN = ("validating", "in_progress", "cancelling")
_RESUBMIT = "`runner submit` the same file, or start a `runner worker`"


def log_checks(redis_url: str | None, data_dir: Path) -> list[tuple[str, Callable[[], Iterator[Finding]]]]:
    """Name and function of each check."""
    data = _DataDir(data_dir.expanduser().absolute(), serves=redis_url is None)
    checks = [("data dir", data.folder), ("disk", data.disk), ("locks", data.locks)]
    if redis_url is not None:
        return [*checks, ("server", _External(redis_url).check)]
    return [*checks, ("server program", data.program), ("server", data.server)]


class _DataDir:
    """One folder; `serves`: whether the log is in it, and not on a server elsewhere."""

    def __init__(self, folder: Path, *, serves: bool) -> None:
        self._folder = folder
        self._serves = serves
        # What is there already: the folder itself, or what it would be made in.
        self._existing = next(one for one in (folder, *folder.parents) if one.exists())

    def folder(self) -> Iterator[Finding]:
        made = "" if self._existing == self._folder else " (made when needed)"
        if not self._existing.is_dir() or not os.access(self._existing, os.W_OK | os.X_OK):
            message = f"{self._folder} cannot be written by this user"
            yield Finding("data dir", "fail", message, "choose another with --data-dir (RUNNER_DATA_DIR)")
            return
        kind = filesystem_of(self._existing)
        try:
            check_filesystem(self._folder, kind)
        except SinkError as error:
            # With a server elsewhere only models and spools are here.
            yield Finding("data dir", "fail" if self._serves else "warn", error.message, "a local --data-dir")
            return
        yield Finding("data dir", "ok", f"{self._folder}{made}, {kind or 'unknown file system'}")

    def disk(self) -> Iterator[Finding]:
        usage = shutil.disk_usage(self._existing)
        told = f"{usage.free / _GIB:.1f} GiB free of {usage.total / _GIB:.0f}"
        remedy = "make room, or choose another --data-dir"
        if usage.free < _TOO_LITTLE:
            yield Finding("disk", "fail", f"{told}: a log that cannot grow stops its jobs", remedy)
        elif usage.free < _LITTLE:
            yield Finding("disk", "warn", f"{told}: little for logs and converted models", remedy)
        else:
            yield Finding("disk", "ok", told)

    def locks(self) -> Iterator[Finding]:
        from streamrunner.sinks.locks import is_worker_dead

        names = [path.stem for path in (self._folder / "workers").glob("*.lock")]
        alive = [name for name in names if not is_worker_dead(self._folder, name)]
        damaged = list((self._folder / "server" / "damaged").glob("*"))
        if damaged:
            message = f"{len(damaged)} pieces were cut off a damaged log and kept in {damaged[0].parent}"
            yield Finding("locks", "warn", message, "remove them once you miss nothing; the README there says more")
        yield Finding(
            "locks", "ok", f"{len(alive)} workers of this data dir are alive, {len(names) - len(alive)} ended"
        )

    def program(self) -> Iterator[Finding]:
        from streamrunner.sinks.embedded.binary import choose_binary
        from streamrunner.sinks.embedded.pin import read_pin

        path = self._folder / "server" / "server.json"
        try:
            pin = read_pin(path)
            if pin is not None:
                pin.check_host(this_host(), path)
            found = choose_binary(pin.written_by if pin is not None else None)
        except SinkError as error:
            yield _failed("server program", error)
            return
        yield Finding("server program", "ok", str(found))

    def server(self) -> Iterator[Finding]:
        from streamrunner.sinks.connect import make_unix_client
        from streamrunner.sinks.embedded.peek import running_socket
        from streamrunner.sinks.locks import try_lock

        try:
            socket = running_socket(self._folder)
        except SinkError as error:
            yield _failed("server", error)
            return
        if socket is not None:
            with make_unix_client(socket, blocking=False) as client:
                yield from _examine_server(client, "the private server", clock=False)
            return
        lock_path = self._folder / "server" / "server.lock"
        lock = try_lock(lock_path) if lock_path.exists() else None
        if lock is None and lock_path.exists():
            holder = (lock_path.read_text("utf-8", errors="replace").split() or ["?"])[0]
            message = f"a private server (pid {holder}) holds the data dir and does not answer"
            yield Finding("server", "warn", message, f"wait if it is starting; else end it (kill {holder})")
            return
        if lock is not None:
            lock.close()
        yield Finding("server", "ok", "the private server is not running: the first command starts it")


class _External:
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def check(self) -> Iterator[Finding]:
        from streamrunner.sinks.server import ExternalServer

        try:
            server = ExternalServer(self._url)
        except SinkError as error:
            yield _failed("server", error)
            return
        for notice in server.notices():
            yield Finding("durability", "warn", notice, "see docs/recovery.md: what each policy can lose")
        yield from _examine_server(server.client(), server.address, clock=True)


def _failed(name: str, error: SinkError) -> Finding:
    """The message of such an error says what to do; its code leads to more."""
    return Finding(name, "fail", error.message, f"[{error.code}]")


def _examine_server(client: Any, where: str, *, clock: bool) -> Iterator[Finding]:
    from redis.exceptions import RedisError

    from streamrunner.sinks.versions import parse_info

    try:
        info: Mapping[str, Any] = client.info()
    except RedisError as error:
        yield Finding("server", "warn", f"{where} tells nothing of itself ({error})", "allow INFO to this user")
        info = {}
    version = parse_info(info)
    yield Finding("server", "ok", f"{where}: {version or 'unknown version'}")
    yield from _persistence(info)
    yield from _server_memory(info)
    yield from _latency(client)
    if clock:
        yield from _clock(client)
    yield from _jobs(client)


def _persistence(info: Mapping[str, Any]) -> Iterator[Finding]:
    for name, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if info.get(name, "ok") != "ok":
            message = f"the server's last write of its {what} failed"
            yield Finding("persistence", "fail", message, "look into its log: mostly the disk is full")
    if int(info.get("aof_enabled", 0)):
        size = int(info.get("aof_current_size", 0))
        yield Finding("persistence", "ok", f"append-only file of {size / (1 << 20):.1f} MiB")


def _server_memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if limit and used > _FULL * limit:
        message = f"the server uses {used / _GIB:.2f} of {limit / _GIB:.2f} GiB (maxmemory); full, it refuses writes"
        yield Finding("server memory", "warn", message, "raise maxmemory, or remove jobs you are done with")
    elif used:
        yield Finding(
            "server memory", "ok", f"{used / (1 << 20):.0f} MiB" + (f" of {limit / _GIB:.1f} GiB" if limit else "")
        )


def _latency(client: Any) -> Iterator[Finding]:
    from redis.exceptions import RedisError

    times_ms = []
    try:
        for _ in range(_PINGS):
            began = time.perf_counter()
            client.ping()
            times_ms.append((time.perf_counter() - began) * 1000)
    except RedisError as error:
        yield Finding("latency", "warn", f"PING failed: {error}", "allow PING to this user, or look at the network")
        return
    median, worst = statistics.median(times_ms), max(times_ms)
    told = f"a round trip takes {median:.2f} ms, at worst {worst:.1f} of {_PINGS}"
    if median > _SLOW_MS:
        remedy = "run workers near the server; tokens reach watchers later, the engine is not slowed"
        yield Finding("latency", "warn", told, remedy)
    else:
        yield Finding("latency", "ok", told)


def _clock(client: Any) -> Iterator[Finding]:
    from redis.exceptions import RedisError

    before = time.time()
    try:
        seconds, micros = client.time()
    except RedisError:
        return
    here = (before + time.time()) / 2
    skew_s = here - (seconds + micros / 1e6)
    if abs(skew_s) > _SKEW_S:
        message = f"this machine's clock is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the server's"
        yield Finding("clock", "warn", message, "times in logs are the server's; let NTP set both")
    else:
        yield Finding("clock", "ok", f"within {max(abs(skew_s), 0.001):.3f} s of the server's")


def _jobs(client: Any) -> Iterator[Finding]:
    """Jobs that are open and have no worker: their leases ran out and nobody took over."""
    from redis.exceptions import RedisError

    from streamrunner.runner.submission import PREFIX
    from streamrunner.sinks.directory import JobDirectory
    from streamrunner.sinks.keys import JobKeys

    directory = JobDirectory(client, PREFIX)
    try:
        jobs = directory.jobs()[-_RECENT_JOBS:]
        for job in jobs:
            meta = directory.meta(job.job_id)
            if meta.get("status") not in _OPEN or meta.get("paused") == "1":
                continue
            workers = [name[2:] for name, state in meta.items() if name.startswith("w:") and state == "joined"]
            keys = JobKeys(job.job_id, PREFIX)
            if not any(client.exists(keys.lease(worker)) for worker in workers):
                yield Finding("jobs", "warn", f"{job.job_id} {job.name} is open and nobody works on it", _RESUBMIT)
        yield Finding(
            "jobs", "ok", f"{len(jobs)} known" if len(jobs) < _RECENT_JOBS else f"the newest {len(jobs)} looked at"
        )
    except RedisError as error:
        yield Finding("jobs", "warn", f"they cannot be read: {error}", "allow this user to read the keys sr:*")
