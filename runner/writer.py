"""From engine steps to the log: one numbered flush carries the new tokens, the ended rows and the worker's own events.

    StepOutput ──▶ text, stop strings ──▶ row in flight ──▶ pending ──(50 ms or 64 KB)──▶ sr_v1_flush ──▶ verdicts

A flush is kept until its reply is known and sent again under the same number, so a lost reply doubles nothing. On a
server that can lose its tail the flushes of the last 10 s are kept besides, and sent again when it has (`kept`).
Owned by the worker thread; the engine never waits for it unless the bounded queue between them is full.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.kept import KeptFlushes
from streamrunner.runner.pieces import MAX_STEP_BYTES, pieces, wire_size
from streamrunner.runner.response import completed_payload, failed_payload
from streamrunner.sinks.log import Flush, JobLog, Reply, Terminal
from streamrunner.sinks.wire import StepDelta, encode_deltas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrunner.runner.flight import RowPlace, RowRun
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.lease import LeaseKeeper
    from streamrunner.sinks.log import ClaimedRange

FLUSH_BYTES = 64 * 1024
# Redis itself says that `everysec` can lose two seconds; a replica that takes over, what it lagged behind.
KEEP_S = 10.0
_TRIM_EVERY = 64
# Followers get this many entries to catch up before tokens of finished rows go.
_TRIM_SLACK = 2_000


class LeaseGone(Exception):
    """The flush was refused because the lease is gone or the server lost its tail: join anew, then append again."""


@dataclass(slots=True)
class Pending:
    """What the next flush will carry."""

    deltas: list[StepDelta] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    terminals: list[Terminal] = field(default_factory=list)
    num_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.deltas or self.events or self.terminals)

    def first_part(self) -> Pending:
        """What one flush may carry: all of it, as a rule. Rows end with their last tokens, so their endings go last."""
        if self.num_bytes <= MAX_STEP_BYTES:
            return self
        size, count = 0, 0
        while count < len(self.deltas) and (count == 0 or size + wire_size(self.deltas[count]) <= MAX_STEP_BYTES):
            size += wire_size(self.deltas[count])
            count += 1
        return self if count == len(self.deltas) else Pending(self.deltas[:count], num_bytes=size)

    def without(self, part: Pending) -> Pending:
        """What is left once `part` is in the log."""
        if part is self:
            return Pending()
        rest = self.deltas[len(part.deltas) :]
        return Pending(rest, self.events, self.terminals, self.num_bytes - part.num_bytes)


class JobSums(NamedTuple):
    """What the whole job had made at the last flush; output_tokens are those of completed rows."""

    completed: int
    failed: int
    output_tokens: int


class LogWriter:
    """Collects and flushes. `on_closed(range, row, verdict)` is told of every terminal the log answered for."""

    def __init__(
        self,
        job: JobContext,
        log: JobLog,
        lease: LeaseKeeper,
        on_closed: Callable[[str, int, Any], None],
        token_text: Callable[[int], str],
    ) -> None:
        self._job = job
        self._log = log
        self._lease = lease
        self._on_closed = on_closed
        self._token_text = token_text
        self._flush_s = job.spec.events.flush_ms / 1000
        self._pending = Pending()
        self._next_n = 1
        self._last_flush = time.monotonic()
        self._trims = job.spec.events.retention != "full"
        self._kept = KeptFlushes(KEEP_S if log.may_lose_tail else 0.0)
        self._cuts: list[tuple[str, int]] = []
        self.open_rows: int | None = None
        self.sums = JobSums(0, 0, 0)

    @property
    def due(self) -> bool:
        """Whether enough time or enough bytes have come together."""
        if not self._pending:
            return False
        late = time.monotonic() - self._last_flush >= self._flush_s
        return late or self._pending.num_bytes >= FLUSH_BYTES or bool(self._pending.terminals)

    @property
    def pending_rows(self) -> set[int]:
        """Rows whose terminal is not in the log yet."""
        return {terminal.row for terminal in self._pending.terminals}

    def add_deltas(self, run: RowRun, deltas: list[StepDelta]) -> None:
        """Append tokens of a row in flight."""
        if run.first_n is None:
            run.first_n = self._next_n
        for whole in deltas:
            for delta in pieces(whole):
                self._pending.deltas.append(delta)
                self._pending.num_bytes += wire_size(delta)

    def add_event(self, kind: str, data: dict[str, Any]) -> None:
        """Append a `progress` or `notice`."""
        self._pending.events.append((kind, data))

    def complete(self, run: RowRun) -> None:
        """End a row with its result."""
        payload, usage = completed_payload(self._job, run, self._token_text)
        data = {
            **run.place._asdict(),
            "finish_reasons": [choice.finish_reason for choice in run.choices],
            "usage": usage,
        }
        self._end(data, "request.completed", payload, usage)

    def fail(self, place: RowPlace, error: dict[str, Any]) -> None:
        """End a row with the reason why it has no result (`code`, `message`, `param`)."""
        data = {**place._asdict(), "error": error}
        self._end(data, "request.failed", failed_payload(error), {})

    def _end(self, data: dict[str, Any], kind: str, payload: bytes, usage: dict[str, int]) -> None:
        prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        terminal = Terminal(data["row"], data["range"], data["claim"], kind, data, payload, prompt, completion)
        self._pending.terminals.append(terminal)
        self._pending.num_bytes += len(payload)

    def take_cuts(self) -> list[tuple[str, int]]:
        """Ranges, by id, that lost their rows from the given one on to a split; each is told once."""
        cuts, self._cuts = self._cuts, []
        return cuts

    def flush(self, in_flight: list[RowRun]) -> None:
        """Send what is pending, waiting for the log as long as its patience lasts.

        Raises LeaseGone (nothing is lost: join, call `rejoined`, append again); RunnerError `lease_fenced`, `job_gone`.
        """
        if not self._pending:
            return
        while self._pending:
            part = self._pending.first_part()
            flush = self._compose(part, in_flight)
            reply = self._send(flush)
            if reply["s"] == "GAP":
                self._fill_gap(part, flush, int(reply["last"]))
            self._take(part, flush, reply)
        outage = self._log.take_outage()
        if outage is not None:
            message = f"the log took no writes for {outage.seconds:.1f} s, {outage.fault.message}; nothing was lost"
            self.add_event("notice", {"code": "log_outage", "message": message})

    def rejoined(self, held: Mapping[str, ClaimedRange]) -> int:
        """Start the numbers of a new epoch, with what is still this worker's to write: `held`, as the join told.

        Pending terminals under those claims stay, and kept ones come back whose rows are open again on a server that
        lost its tail; their rows are not computed twice. Returns how many rows were pending and are others' now.
        """
        self._next_n = 1
        num_pending = len(self._pending.terminals)
        pending = {one.row: one for one in self._pending.terminals if _is_held(one, held)}
        lost = {one.row: one for one in self._kept.terminals() if _is_held(one, held) and _is_open(one, held)}
        self._kept.clear()
        self._pending.deltas = [one for one in self._pending.deltas if one.row in pending]
        self._pending.terminals = list({**lost, **pending}.values())
        return num_pending - len(pending)

    def _compose(self, part: Pending, in_flight: list[RowRun]) -> Flush:
        steps = encode_deltas(part.deltas) if part.deltas else b""
        return Flush(self._next_n, steps, self._trim_point(in_flight), part.events, part.terminals)

    def _send(self, flush: Flush) -> Reply:
        """Return a reply that is OK, DUP or GAP."""
        reply = self._log.flush(self._lease.lease, flush)
        self._lease.observe(reply)
        self._last_flush = time.monotonic()
        if reply["s"] == "EXPIRED":
            raise LeaseGone(reply["s"])
        if reply["s"] not in ("OK", "DUP", "GAP"):
            raise _refused(reply["s"])
        return reply

    def _fill_gap(self, part: Pending, flush: Flush, last: int) -> NoReturn:
        """The server lost what came after flush `last`: send it again, under the same numbers.

        Claims may be lost too, so the worker joins anew in any case and compares.
        """
        for one in (*self._kept.after(last), flush):
            reply = self._send(one)
            if reply["s"] == "GAP":
                raise LeaseGone("GAP")
        self._take(part, flush, reply)
        raise LeaseGone("GAP")

    def _take(self, part: Pending, flush: Flush, reply: Reply) -> None:
        """The log has it."""
        self._kept.add(flush)
        self._pending = self._pending.without(part)
        self._next_n += 1
        self._settle(list(flush.terminals), reply)

    def _settle(self, terminals: list[Terminal], reply: Reply) -> None:
        verdicts = reply.get("t") or []
        for terminal, verdict in zip(terminals, verdicts, strict=False):
            self._on_closed(terminal.range, terminal.row, verdict)
        for cut in str(reply.get("cuts") or "").split():
            range_id, _, limit = cut.partition("=")
            self._cuts.append((range_id, int(limit)))
        if "open" in reply:
            self.open_rows = int(reply["open"])
        if "completed" in reply:
            self.sums = JobSums(int(reply["completed"]), int(reply["failed"]), int(reply["output_tokens"]))

    def _trim_point(self, in_flight: list[RowRun]) -> str:
        """Unless all tokens are kept, the step id below which no row in flight has tokens."""
        if not self._trims or self._next_n % _TRIM_EVERY:
            return ""
        needed = min((run.first_n for run in in_flight if run.first_n is not None), default=self._next_n)
        keep_from = min(needed, self._next_n - _TRIM_SLACK)
        return f"{self._lease.lease.epoch}-{keep_from}" if keep_from > 1 else ""


def _is_held(one: Terminal, held: Mapping[str, ClaimedRange]) -> bool:
    return one.range in held and held[one.range].claim == one.claim and one.row in held[one.range].rows


def _is_open(one: Terminal, held: Mapping[str, ClaimedRange]) -> bool:
    claimed = held[one.range]
    return claimed.done[one.row - claimed.rows.start] == "0"


def _refused(status: str) -> RunnerError:
    if status == "NOJOB":
        return RunnerError(
            "job_gone",
            "the log's server has lost this job as a whole, or somebody deleted it: run the same submit again for a "
            "fresh one, and give the server an append-only file (appendonly yes, appendfsync always)",
            ExitCode.STOPPED,
        )
    return RunnerError(
        "lease_fenced",
        "another process joined under this worker's id and holds its rows now; this one writes nothing more. "
        "Run the same command again",
        ExitCode.STOPPED,
    )
