"""What a job's log says on its own, and what is wrong with it: the fold, and every promise checked beside it.

Nothing here asks the server for derived state (`meta`, bitmap, claims): whatever can be rebuilt comes from entries.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.runner.fold import OPEN, JobState
from streamrunner.runner.row_index import pack_id
from streamrunner.sinks.wire import encode_json

if TYPE_CHECKING:
    from streamrunner.sinks.wire import LogEntry

_ENDINGS = frozenset({"request.completed", "request.failed", "request.cancelled", "request.expired"})
# What moves the control seq that a flush's reply carries.
_CONTROLS = frozenset(
    {"job.paused", "job.resumed", "job.changed", "job.cancel_requested", "job.ended", "request.retried"}
)
# Ended by the worker that held the row; others may be ended by a command.
_BODIED = frozenset({"request.completed", "request.failed"})
_SETTINGS = ("limits", "stop_when", "priority")
_STANDING = {"worker.joined": "joined", "worker.preempted": "left", "worker.lost": "lost"}
_SHOWN = 3


@dataclass(slots=True)
class Finding:
    """One kind of fault: how often it was met, and the first few in words. repairable: from the log alone."""

    code: str
    repairable: bool
    count: int = 0
    examples: list[str] = field(default_factory=list)


class Findings:
    """What was found, by code, in the order in which it was met."""

    def __init__(self) -> None:
        self._by_code: dict[str, Finding] = {}

    def add(self, code: str, message: str, *, repairable: bool = False) -> None:
        """Count one fault; the first three of a code are kept in words."""
        found = self._by_code.setdefault(code, Finding(code, repairable))
        found.count += 1
        if len(found.examples) < _SHOWN:
            found.examples.append(message)

    def all(self) -> list[Finding]:
        """Everything found; empty if nothing is wrong."""
        return list(self._by_code.values())


class RangeHolder(NamedTuple):
    """Who was last given a range."""

    claim: int
    worker: str


class LogProof:
    """Folds the log entry by entry and notes what breaks its contract; see docs/log.md for the contract."""

    def __init__(self, findings: Findings) -> None:
        self.state = JobState()
        self.num_entries = 0
        self.gen = 0
        self.epoch = 0
        self.claim = 0
        self.control_seq = 0
        self.retry_seq = 0
        self.workers: dict[str, str] = {}
        self.holders: dict[str, RangeHolder] = {}
        # Packed ids of the entries that have a payload.
        self.payload_ids = array("Q")
        self._findings = findings
        self._last_seq = 0

    def apply(self, entry: LogEntry) -> None:
        """Check one entry against those before it, then take it in."""
        self.num_entries += 1
        self._check_place(entry)
        if entry.type == "job.ended":
            self._check_counts(entry)
        if entry.type in _ENDINGS and not self._is_good_ending(entry):
            return
        self.state.apply(entry)
        self._take(entry)

    def finish(self) -> None:
        """Check what only the whole log can say."""
        try:
            self.state.check()
        except AssertionError as error:
            self._findings.add("counts", f"the rows do not add up: {error}")

    def meta(self) -> dict[str, str]:
        """The fields of `meta` that the log alone decides."""
        state = self.state
        found = {name: str(getattr(state, name)) for name in _COUNTERS}
        found |= {
            "status": state.status, "rows": str(state.num_rows), "paused": "1" if state.paused else "0",
            "created": str(state.submitted_ms),
        }  # fmt: skip
        if state.started_ms:
            found |= {"started": str(state.started_ms), "clock": str(state.running_since_ms)}
        if state.ended:
            found |= {"ended": str(state.ended_ms), "reason": state.reason or "", "limit": state.limit or ""}
        return found | {f"w:{worker}": standing for worker, standing in self.workers.items()}

    def floors(self) -> dict[str, int]:
        """Numbers of `meta` that may be ahead of the log (calls that append nothing use some up), never behind it."""
        least = {"gen": self.gen, "epoch": self.epoch, "claim": self.claim, "ctl": self.control_seq}
        return least | ({"retry_seq": self.retry_seq} if self.retry_seq else {})

    def settings(self) -> dict[str, str]:
        """What workers read again while a job runs, as JSON; `meta` has it too, in a spelling of its own."""
        return {name: encode_json(self.state.spec[name]).decode() for name in _SETTINGS if name in self.state.spec}

    def done(self) -> bytes:
        """The bitmap: one bit a row, set where the row has its terminal event; no zero bytes at the end."""
        import numpy as np

        bits = np.frombuffer(bytes(self.state.rows), np.uint8) != OPEN
        return np.packbits(bits).tobytes().rstrip(b"\0")

    def _check_place(self, entry: LogEntry) -> None:
        if entry.seq != self._last_seq + 1:
            self._findings.add(
                "gap", f"entry {entry.id} follows seq {self._last_seq}: entries between them are missing"
            )
        if entry.gen < self.gen:
            self._findings.add("gen", f"entry {entry.id} has an older gen than one before it ({self.gen})")
        if (entry.seq == 1) != (entry.type == "job.submitted"):
            self._findings.add("order", f"entry {entry.id} is {entry.type}; `job.submitted` is the first and only one")
        self._last_seq, self.gen = entry.seq, max(self.gen, entry.gen)

    def _check_counts(self, entry: LogEntry) -> None:
        state, data = self.state, entry.data
        own = {name: getattr(state, name) for name in ("completed", "failed", "cancelled", "expired")}
        own[data["status"]] += state.open_rows
        said = {name: data["counts"][name] for name in own}
        if own != said:
            self._findings.add("counts", f"job.ended ({entry.id}) counts {said}, the events before it {own}")

    def _is_good_ending(self, entry: LogEntry) -> bool:
        row, attempt = entry.data["row"], entry.data["attempt"]
        if row >= self.state.num_rows:
            self._findings.add("row", f"{entry.type} ({entry.id}) ends row {row} of {self.state.num_rows}")
            return False
        self.payload_ids.append(pack_id(entry.seq, entry.gen))
        if entry.type in _BODIED:
            self._check_claim(entry)
        if attempt != self.state.attempts.get(row, 1) or self.state.rows[row] != OPEN:
            self._findings.add("doubled", f"{entry.type} ({entry.id}) ends row {row}, attempt {attempt}, a second time")
            return False
        return True

    def _check_claim(self, entry: LogEntry) -> None:
        holder = self.holders.get(entry.data["range"])
        if holder != (entry.data["claim"], entry.by):
            given = "nobody" if holder is None else f"{holder.worker} under claim {holder.claim}"
            self._findings.add(
                "claim",
                f"{entry.type} ({entry.id}) was written by {entry.by} under claim {entry.data['claim']} of range "
                f"{entry.data['range']}, which was given to {given}",
            )

    def _take(self, entry: LogEntry) -> None:
        if entry.type in _CONTROLS:
            self.control_seq = entry.seq
        if standing := _STANDING.get(entry.type):
            self.workers[entry.data["worker"]] = standing
        if entry.type == "worker.joined":
            self.epoch = max(self.epoch, entry.data["epoch"])
        elif entry.type == "range.claimed":
            self.claim = max(self.claim, entry.data["claim"])
            self.holders[entry.data["range"]] = RangeHolder(entry.data["claim"], entry.data["worker"])
        elif entry.type == "request.retried":
            self.retry_seq = entry.seq
        elif entry.type == "job.reopened":
            self.holders.clear()
            self.workers = dict.fromkeys(self.workers, "left")


_COUNTERS = ("completed", "failed", "cancelled", "expired", "prompt_tokens", "completion_tokens")
