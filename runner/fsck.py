"""Prove a job from its log alone, and bring what is derived from it (`meta`, the bitmap) in line where it is not.

log ──fold──▶ what must stand there ──compare──▶ meta, done, claims, res      every difference is a finding
                                    ──repair───▶ meta, done                   nothing else can be made again
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.log_proof import Finding, Findings, LogProof
from streamrunner.runner.row_index import pack_id, unpack_id
from streamrunner.sinks.blob import parse_reference
from streamrunner.sinks.reader import read_log
from streamrunner.sinks.wire import parse_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.log import JobLog

# Payloads may be large: this many are held at a time.
_PAYLOAD_PAGE = 256
# What a field of `meta` means that nobody has had to write yet.
_UNWRITTEN = {"paused": "0", "reason": ""}


@dataclass(frozen=True, slots=True)
class Report:
    """What was read, and everything that is wrong with it.

    last_id: how far the log had come. meta: the fields that a repair writes.
    """

    proof: LogProof
    findings: list[Finding]
    num_payloads: int
    last_id: str
    meta: dict[str, str]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def is_repairable(self) -> bool:
        """Whether something is wrong that can be rebuilt from the log."""
        return any(one.repairable for one in self.findings)


class _Snapshot(NamedTuple):
    """The derived keys at one moment, and how far the log had come at that moment."""

    last_id: str
    meta: dict[str, str]
    done: bytes
    claims: dict[str, str]
    attempts: dict[str, str]


def examine(client: redis.Redis, keys: JobKeys) -> Report:
    """Fold the log and compare all else with it, as of one moment, also while the job runs.

    Raises RunnerError (`job_not_found`) if the job has no log, SinkError (`log_conflict`) if a newer release wrote it.
    """
    snapshot = _take_snapshot(client, keys)
    findings = Findings()
    proof = LogProof(findings)
    for entry in read_log(client, keys):
        proof.apply(entry)
        if entry.id == snapshot.last_id:
            break
    proof.finish()
    settings = {name: text for name, text in proof.settings().items() if name not in snapshot.meta}
    _compare_meta(proof, snapshot.meta, findings)
    for name in settings if snapshot.meta else ():
        findings.add("meta", f"`meta` has no {name}, the log says {settings[name]}", repairable=True)
    _compare_attempts(proof, snapshot.attempts, findings)
    _compare_done(proof, snapshot.done, findings)
    _compare_claims(proof, snapshot.claims, findings)
    last = pack_id(*parse_id(snapshot.last_id.encode()))
    held = (one for one in _payload_ids(client, keys, findings) if one <= last)
    num_payloads = _compare_payloads(proof, held, findings)
    return Report(proof, findings.all(), num_payloads, snapshot.last_id, proof.meta() | settings)


def repair(log: JobLog, report: Report) -> None:
    """Rewrite `meta` and the bitmap as the log has them; what is right already stays as it is.

    Raises RunnerError: `job_running` while a worker holds the job, `job_moved` if the log has grown since.
    """
    proof = report.proof
    reply = log.repair(
        report.last_id, proof.done(), report.meta, proof.floors(), proof.state.attempts, list(proof.workers)
    )
    if reply["s"] == "ALIVE":
        raise RunnerError(
            "job_running",
            f"worker {reply['worker']} holds this job, and writes what a repair would: stop it, or wait 15 s if it is "
            "dead, and run the same command again",
        )
    if reply["s"] == "STALE":
        raise RunnerError("job_moved", "the log has grown while it was read: run the same command again")


def _take_snapshot(client: redis.Redis, keys: JobKeys) -> _Snapshot:
    raw: Any = client
    with raw.pipeline(transaction=True) as pipe:
        pipe.xrevrange(keys.log, count=1)
        pipe.hgetall(keys.meta)
        pipe.get(keys.done)
        pipe.hgetall(keys.claims)
        pipe.hgetall(keys.attempts)
        last, meta, done, claims, attempts = pipe.execute()
    if not last:
        raise RunnerError("job_not_found", f"{keys.job_id} has no log, so nothing can be proved or rebuilt")
    return _Snapshot(last[0][0].decode(), _texts(meta), (done or b"").rstrip(b"\0"), _texts(claims), _texts(attempts))


def _texts(raw: dict[bytes, bytes] | list[bytes]) -> dict[str, str]:
    # In a Cluster redis-py leaves the replies of a transaction as the server gave them.
    pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}


def _compare_meta(proof: LogProof, meta: dict[str, str], findings: Findings) -> None:
    if not meta:
        findings.add("meta", "`meta` is missing", repairable=True)
        return
    for name, right in proof.meta().items():
        if meta.get(name, _UNWRITTEN.get(name)) != right:
            message = f"`meta` has {name} = {meta.get(name)}, the log says {right}"
            findings.add("meta", message, repairable=True)
    for name, least in proof.floors().items():
        if int(meta.get(name, -1)) < least:
            message = f"`meta` has {name} = {meta.get(name)}, the log has seen {least}"
            findings.add("meta", message, repairable=True)


def _compare_done(proof: LogProof, done: bytes, findings: Findings) -> None:
    right = proof.done()
    if done == right:
        return
    size = max(len(done), len(right))
    pairs = zip(done.ljust(size, b"\0"), right.ljust(size, b"\0"), strict=True)
    wrong = sum((held ^ said).bit_count() for held, said in pairs)
    findings.add("done", f"the bitmap differs from the log for {wrong} row(s)", repairable=True)


def _compare_attempts(proof: LogProof, attempts: dict[str, str], findings: Findings) -> None:
    right = {str(row): str(attempt) for row, attempt in proof.state.attempts.items()}
    wrong = [row for row in right if attempts.get(row) != right[row]]
    if wrong:
        findings.add("attempts", f"the attempts of {len(wrong)} retried row(s) differ from the log", repairable=True)


def _compare_claims(proof: LogProof, claims: dict[str, str], findings: Findings) -> None:
    """A range that was given back has a newer claim than the log says: only calls that append nothing may do that."""
    for range_id, holder in proof.holders.items():
        held = claims.get(range_id, "").split("|")
        if len(held) < 2 or int(held[0]) < holder.claim or held[1] != holder.worker:
            said = f"{holder.worker} under claim {holder.claim}"
            findings.add("claims", f"range {range_id} was last given to {said}, `claims` has {claims.get(range_id)!r}")
    for range_id in claims.keys() - proof.holders.keys():
        findings.add("claims", f"`claims` has range {range_id}, which the log never gave to anybody")


def _compare_payloads(proof: LogProof, held: Iterator[int], findings: Findings) -> int:
    """Walk events and payloads side by side; ids ascend in both."""
    wanted, place, count = proof.payload_ids, 0, 0
    may_be_gone = proof.state.spec.get("events", {}).get("retention") == "results"
    for packed in held:
        if may_be_gone:
            # What retention took is the oldest; whatever stands behind the first one that is left must be there.
            place, may_be_gone = bisect_left(wanted, packed), False
        while place < len(wanted) and wanted[place] < packed:
            findings.add("result_missing", f"the event {unpack_id(wanted[place])} has no payload in `res`")
            place += 1
        if place < len(wanted) and wanted[place] == packed:
            place, count = place + 1, count + 1
        else:
            findings.add(
                "result_stray", f"the payload {unpack_id(packed)} in `res` belongs to no event that ends a row"
            )
    for missing in wanted[len(wanted) if may_be_gone else place :]:
        findings.add("result_missing", f"the event {unpack_id(missing)} has no payload in `res`")
    return count


def _payload_ids(client: redis.Redis, keys: JobKeys, findings: Findings) -> Iterator[int]:
    raw: Any = client
    start = "-"
    while page := raw.xrange(keys.res, start, count=_PAYLOAD_PAGE):
        for raw_id, fields in page:
            ref = parse_reference(fields[b"p"])
            if ref is not None and raw.hstrlen(keys.blobs, ref.sha256) != ref.num_bytes:
                findings.add("result_missing", f"the payload {raw_id.decode()} refers to a large result that is gone")
            yield pack_id(*parse_id(raw_id))
        start = f"({page[-1][0].decode()}"
