"""The writer's side of a job's log: one method, one function call, one atomic step on the server.

Every call may be sent again after a lost reply: flushes carry a number, commands a ULID, claims name what
the caller holds. So resending is ours alone (redis-py's own would repeat whole pipelines) and it is always safe.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from redis import exceptions as redis_errors

from streamrunner.sinks.blob import MAX_PAYLOAD_BYTES, reference_to
from streamrunner.sinks.errors import LogUnreachable, SinkError
from streamrunner.sinks.faults import LOST, LogFault, Outage, passing_fault
from streamrunner.sinks.library import ensure_library
from streamrunner.sinks.wire import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis

    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.server import LogServer

LEASE_MS = 15_000
BEAT_MS = 5_000
_LONGEST_DELAY_S = 1.0
# A private server that hangs (its disk does, or somebody stopped it) may go on; other refusals to start are final.
_REVIVAL_PASSES = ("log_unreachable", "data_dir_locked")

Reply = dict[str, Any]
T = TypeVar("T")


class Terminal(NamedTuple):
    """The one final event of a row, with the payload its result is made of."""

    row: int
    range: str
    claim: int
    type: str
    data: dict[str, Any]
    payload: bytes
    prompt_tokens: int
    completion_tokens: int


class WorkerLease(NamedTuple):
    """One acquisition of a worker: only these three together may write."""

    worker: str
    epoch: int
    token: str


class StepSource(NamedTuple):
    """A worker whose step stream may hold tokens of a range, all of them behind the step id `after`."""

    worker: str
    after: str


class ClaimedRange(NamedTuple):
    """Rows this worker may finish now: as many as `done` has bytes, '1' for those that have their ending.

    spec: the range as it was submitted; a split may have left it fewer rows. previous: the earlier owners.
    since: this worker's last step id when it claimed.
    """

    id: str
    claim: int
    spec: dict[str, Any]
    done: str
    previous: tuple[StepSource, ...]
    since: str

    @property
    def rows(self) -> range:
        """The rows that the range has now."""
        first = int(self.spec["first"])
        return range(first, first + len(self.done))


class OtherRange(NamedTuple):
    """A range in the hands of another living worker; row `first` + i is open where `done[i]` is '0'."""

    id: str
    claim: int
    worker: str
    first: int
    done: str


class Flush(NamedTuple):
    """One numbered write: step deltas, worker events and terminals together."""

    n: int
    steps: bytes
    trim: str
    events: Sequence[tuple[str, dict[str, Any]]]
    terminals: Sequence[Terminal]


class RowToCancel(NamedTuple):
    """One open row: its present attempt and range, and its event (without the claim) and payload once it is ended."""

    row: int
    attempt: int
    range: str
    data: dict[str, Any]
    payload: bytes


class RetriedRange(NamedTuple):
    """A range to run again, whose `attempts` name the rows that are meant; `rows` has the event of each."""

    spec: dict[str, Any]
    rows: Sequence[dict[str, Any]]


class RetriedCounts(NamedTuple):
    """How the rows of a retry had ended."""

    failed: int
    cancelled: int
    expired: int


class JobLog:
    """Appends to one job. Not thread-safe: each thread that writes has its own.

    patience_s bounds how long a call waits for a log that takes no writes (then LogUnreachable);
    should_stop is asked between tries, so that a signal ends the wait. on_wait hears why before every try but the
    first, on_back once it works again.
    """

    def __init__(
        self,
        server: LogServer,
        keys: JobKeys,
        by: str,
        *,
        patience_s: float = 600.0,
        should_stop: Callable[[], bool] = lambda: False,
        on_wait: Callable[[LogFault], None] = lambda _fault: None,
        on_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._server = server
        self._keys = keys
        self._by = by
        self._patience_s = patience_s
        self._should_stop = should_stop
        self._on_wait = on_wait
        self._on_back = on_back
        self._client: redis.Redis | None = None
        self._outage: Outage | None = None

    @property
    def may_lose_tail(self) -> bool:
        """Whether acknowledged writes can vanish with a crash or a failover of the server."""
        return self._server.may_lose_tail

    def take_outage(self) -> Outage | None:
        """The last time that a call had to wait, each once: what to put on record."""
        outage, self._outage = self._outage, None
        return outage

    def submit(self, data: dict[str, Any], num_rows: int, ranges: Sequence[dict[str, Any]]) -> bool:
        """Write `job.submitted` and all ranges in one step; False if the log has begun already."""
        packed = [encode_json(one) for one in ranges]
        return bool(self._call("submit", [self._by, encode_json(data), num_rows, *packed])["s"] == "OK")

    def join(self, worker: str, token: str, data: dict[str, Any]) -> Reply:
        """Acquire the worker's lease; the reply has `epoch` and the ranges still `held` by this worker."""
        return self._call("join", [worker, token, encode_json(data)], worker)

    def beat(self, lease: WorkerLease, progress: dict[str, Any] | None = None) -> Reply:
        """Renew the lease; `progress` is appended as an event, while the worker cannot flush."""
        told = [] if progress is None else [lease.worker, encode_json(progress)]
        return self._call("beat", [lease.epoch, lease.token, *told], lease.worker)

    def claim(self, lease: WorkerLease, known: Sequence[str], avoid: Sequence[str] = ()) -> Reply:
        """Take one range: an orphaned one first, else a fresh one.

        known: the ranges already held. avoid: those given back, which this worker cannot run.
        """
        return self._call("claim", [*lease, _spaced(known), _spaced(avoid)], lease.worker)

    def others(self, lease: WorkerLease) -> list[OtherRange]:
        """What other living workers hold, the range with the most open rows first; at most 8."""
        found = self._call("held", [lease.worker])["others"]
        return [OtherRange(one["range"], int(one["claim"]), one["worker"], one["first"], one["done"]) for one in found]

    def split(self, lease: WorkerLease, other: OtherRange, cut: int) -> Reply:
        """Take the rows from `cut` on of another worker's range; the reply says OK (as claim does), STALE or FRESH."""
        return self._call("split", [*lease, other.id, other.claim, cut], lease.worker)

    def give_back(self, lease: WorkerLease, ranges: Sequence[str], notice: dict[str, Any]) -> Reply:
        """Let others claim these ranges at once, and append why; what is `given` was this worker's until now."""
        return self._call("give_back", [*lease, encode_json(notice), *ranges], lease.worker)

    def forget(self, worker: str, ttl_ms: int) -> Reply:
        """Let a gone worker's tokens go after a while, unless an open range was once its own (HELD) or it is ALIVE."""
        return self._call("forget", [worker, ttl_ms], worker)

    def flush(self, lease: WorkerLease, flush: Flush) -> Reply:
        """Append everything of one flush, or nothing."""
        args: list[Any] = [lease.worker, lease.epoch, lease.token, flush.n, flush.steps, flush.trim, len(flush.events)]
        for kind, data in flush.events:
            args += [kind, encode_json(data)]
        args.append(len(flush.terminals))
        for one in flush.terminals:
            args += [one.row, one.range, one.claim, one.type, encode_json(one.data), self._slim(one.payload)]
            args += [one.prompt_tokens, one.completion_tokens]
        return self._call("flush", args, lease.worker)

    def _slim(self, payload: bytes) -> bytes:
        """A payload as a stream may hold it: one that is too large is kept beside it first."""
        if len(payload) <= MAX_PAYLOAD_BYTES:
            return payload
        ref = reference_to(payload)
        self._call("blob", [ref.sha256, payload])
        return ref.encode()

    def control(self, command_id: str, kind: str, data: dict[str, Any] | None = None) -> Reply:
        """Cancel, pause, resume or change; the same `command_id` again changes nothing."""
        return self._call("control", [self._by, command_id, kind, encode_json(data or {})])

    def cancel_row(self, command_id: str, row: RowToCancel) -> Reply:
        """End one row; the reply says OK (with the rows still `open`), CLOSED, STALE or ENDED."""
        args = [row.row, row.attempt, row.range, encode_json(row.data), row.payload]
        return self._call("cancel_row", [self._by, command_id, *args])

    def retry(self, command_id: str, seq: int, ranges: Sequence[RetriedRange], counts: RetriedCounts) -> Reply:
        """Open rows again that the log has ended up to `seq`; the reply says OK, STALE (read on), CANCELLING."""
        args: list[Any] = [self._by, command_id, seq, *counts, len(ranges)]
        for one in ranges:
            args += [encode_json(one.spec), len(one.rows)]
            for row in one.rows:
                args += [row["row"], row["attempt"], encode_json(row)]
        return self._call("retry", args)

    def end(self, status: str, reason: str = "", limit: str = "") -> Reply:
        """Append `job.ended` with the counts; refused while rows are open and for a second time."""
        return self._call("end", [self._by, status, reason, limit])

    def standing(self) -> Reply:
        """What other calls say beside their answer; nothing is written, one try. Raises LogUnreachable."""
        try:
            client: Any = self._connected()
            status, paused, ctl = client.hmget(self._keys.meta, "status", "paused", "ctl")
        except (*LOST, redis_errors.ResponseError) as error:
            self._disconnect()
            raise LogUnreachable(f"the log at {self._server.address} does not answer: {error}") from error
        if status is None:
            return {"s": "NOJOB"}
        return {"s": "OK", "status": status.decode(), "paused": paused == b"1", "ctl": int(ctl)}

    def expire_steps(self, ttl_ms: int) -> None:
        """Let the step streams of all workers go after a while; results and history stay. Best effort."""
        try:
            client: Any = self._connected()
            names = [name[2:].decode() for name in client.hkeys(self._keys.meta) if name.startswith(b"w:")]
            for name in names:
                client.pexpire(self._keys.steps(name), ttl_ms, nx=True)
        except (*LOST, redis_errors.ResponseError):
            self._disconnect()

    def leave(self, lease: WorkerLease, reason: str) -> Reply:
        """Give the lease back on purpose, so that others can claim this worker's ranges at once."""
        return self._call("leave", [lease.worker, lease.epoch, lease.token, reason], lease.worker)

    def lost(self, worker: str, reason: str) -> Reply:
        """Declare another worker dead; only for who can prove it."""
        return self._call("lost", [worker, self._by, reason], worker)

    def export(self, exporter: str, seen: str, until: int, required: Sequence[str] | None) -> Reply:
        """Say that an exporter lives and has all results up to seq `until`: OK with `trimmed` and `held_by`, or STALE.

        seen: the id of the last entry it has read. required: exporters without whose word nothing is trimmed; None if
        results stay in any case.
        """
        trims = "0" if required is None else "1"
        return self._call("export", [exporter, seen, until, trims, *(required or ())])

    def repair(
        self,
        last_id: str,
        done: bytes,
        meta: dict[str, str],
        floors: dict[str, int],
        attempts: dict[int, int],
        workers: Sequence[str],
    ) -> Reply:
        """Rewrite derived state as a fold up to `last_id` has it: OK, ALIVE (a worker holds the job), STALE, NOJOB.

        meta: fields to replace. floors: fields to raise where they are lower. attempts: of rows that were retried.
        workers: all that the log names.
        """
        args: list[Any] = [self._by, last_id, done]
        for one in (meta, floors, attempts):
            args += [len(one), *(part for pair in one.items() for part in pair)]
        return self._call("repair", [*args, *workers])

    def purge(self) -> Reply:
        """Delete all keys of an ended job at once: OK, RUNNING, or BROKEN (its `meta` is lost: repair it first)."""
        return self._call("purge", [])

    def _call(self, function: str, args: list[Any], worker: str | None = None) -> Reply:
        of = self._keys
        keys: list[str] = [of.log, of.res, of.work, of.claims, of.done, of.meta]
        if worker is not None:
            keys += [self._keys.lease(worker), self._keys.steps(worker)]
        reply: Any = self.ask(lambda client: client.fcall(f"sr_v1_{function}", len(keys), *keys, *args))
        return dict(decode_json(reply))

    def ask(self, question: Callable[[redis.Redis], T]) -> T:
        """Put a question to the server with the same patience as a write; it may be put several times."""
        began, delay_s = time.monotonic(), 0.05
        fault: LogFault | None = None
        while True:
            try:
                answer = question(self._connected())
            except (*LOST, redis_errors.ResponseError) as error:
                self._disconnect()
                fault = passing_fault(error, self._server.address)
            else:
                if fault is not None:
                    self._outage = Outage(time.monotonic() - began, fault)
                    self._on_back()
                return answer
            if self._should_stop() or time.monotonic() + delay_s > began + self._patience_s:
                raise LogUnreachable(f"the log at {self._server.address} takes no writes: {fault.message}")
            self._on_wait(fault)
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S)

    def _connected(self) -> redis.Redis:
        if self._client is None:
            try:
                self._server.revive()
            except SinkError as error:
                if error.code not in _REVIVAL_PASSES:
                    raise
                raise redis_errors.ConnectionError(error.message) from None
            self._client = self._server.client()
            ensure_library(self._client)
        return self._client

    def _disconnect(self) -> None:
        """Leave nothing of a broken exchange: a late reply must never answer another call."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def claimed_range(reply: Reply) -> ClaimedRange:
    """The range in a claim's reply, or one of the `held` in a join's."""
    previous = tuple(StepSource(*name.split("@")) for name in str(reply["previous"]).split(",") if name)
    spec = decode_json(reply["data"])
    return ClaimedRange(reply["range"], int(reply["claim"]), spec, reply["done"], previous, reply["since"])


def _spaced(names: Sequence[str]) -> str:
    return f" {' '.join(names)} " if names else " "
