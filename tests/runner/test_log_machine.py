"""Submitters, claimers, zombies, splits, lost replies and a lost tail in any order, on a real server.

Whatever happens, a row ends once and under the claim that it belongs to, the durable tokens of a row are a prefix of
its true ones, and a reader that resumes has what one has that reads everything.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from streamrunner.runner.durable import ChoiceKey, fold_steps
from streamrunner.runner.fold import JobState, fold
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import (
    ClaimedRange,
    Flush,
    JobLog,
    OtherRange,
    StepSource,
    Terminal,
    WorkerLease,
    claimed_range,
)
from streamrunner.sinks.reader import read_log, read_payloads, read_steps
from streamrunner.sinks.wire import StepDelta, encode_deltas

if TYPE_CHECKING:
    from streamrunner.sinks.server import LogServer

NUM_ROWS, ROWS_PER_RANGE = 12, 6
INFO = {"host": "h", "pid": 1, "fingerprint": {}}
NAMES = ("a", "b", "c")
_ids = itertools.count()
DISTURBANCES = (
    "submit", "join", "give_back", "stop_beyond_its_lease", "stop_beyond_its_lease", "leave", "try_to_end",
    "remember", "lose_the_tail",
)  # fmt: skip
workers = st.sampled_from(NAMES)
rarely = st.sampled_from((False, False, False, True))


def truth(row: int, at: int, count: int) -> list[int]:
    """Tokens of a row: the same whoever makes them."""
    return [100 * row + position for position in range(at, at + count)]


class Hand:
    """One worker as the protocol asks it to be: it writes only what it holds, and joins anew when it is refused."""

    def __init__(self, name: str, log: JobLog, client: Any, keys: JobKeys) -> None:
        self.name, self.log, self.client, self.keys = name, log, client, keys
        self.lease: WorkerLease | None = None
        self.n = 0
        self.held: dict[str, ClaimedRange] = {}
        self.open: dict[int, str] = {}
        self.num_tokens: dict[int, int] = {}
        self.announced: set[int] = set()

    def join(self) -> None:
        token = f"t{next(_ids)}"
        reply = self.log.join(self.name, token, INFO)
        self.forget_all()
        if reply["s"] == "OK":
            self.lease, self.n = WorkerLease(self.name, int(reply["epoch"]), token), 0
            for one in map(claimed_range, reply["held"] or ()):
                self.adopt(one, (*one.previous, StepSource(self.name, one.since)))

    def forget_all(self) -> None:
        for known in (self.held, self.open, self.num_tokens, self.announced):
            known.clear()

    def adopt(self, claimed: ClaimedRange, sources: tuple[StepSource, ...]) -> None:
        self.held[claimed.id] = claimed
        entries = [entry for one in sources for entry in read_steps(self.client, self.keys, *one)]
        durable = fold_steps(entries, claimed.rows)
        for row, done in zip(claimed.rows, claimed.done, strict=True):
            if done == "0":
                self.open[row] = claimed.id
                found = durable.get(ChoiceKey(row, 0))
                tokens = found.token_ids if found else []
                assert tokens == truth(row, 0, len(tokens)), "durable tokens are a prefix of the true ones"
                self.num_tokens[row] = len(tokens)

    def take(self, reply: Any, *, is_lost: bool) -> None:
        if reply["s"] in ("EXPIRED", "FENCED"):
            self.join()
        elif reply["s"] == "OK" and not is_lost:
            claimed = claimed_range(reply)
            self.adopt(claimed, claimed.previous)

    def write(self, row: int, count: int, *, ends: bool, is_lost: bool) -> None:
        claimed = self.held[self.open[row]]
        at = self.num_tokens[row]
        begin = at if row in self.announced else 0
        tokens = truth(row, begin, at - begin + count)
        steps = encode_deltas([StepDelta(row, claimed.claim, 0, begin, tokens, "x" * len(tokens))])
        data = {"row": row, "custom_id": "", "attempt": 1, "range": claimed.id, "claim": claimed.claim}
        usage = {"prompt_tokens": 1, "completion_tokens": at + count, "total_tokens": at + count + 1}
        data |= {"finish_reasons": ["stop"], "usage": usage}
        terminal = Terminal(row, claimed.id, claimed.claim, "request.completed", data, b"{}", 1, at + count)
        flush = Flush(self.n + 1, steps, "", (), [terminal] if ends else [])
        assert self.lease is not None
        reply = self.log.flush(self.lease, flush)
        if is_lost and reply["s"] == "OK":
            again = self.log.flush(self.lease, flush)
            assert (again["s"], again["t"], again.get("cuts")) == ("DUP", reply["t"], reply.get("cuts"))
        if reply["s"] != "OK":
            assert reply["s"] in ("EXPIRED", "GAP", "FENCED"), reply
            self.join()
            return
        self.n += 1
        self.num_tokens[row] = at + count
        self.announced.add(row)
        if ends:
            self.close(row)
        for cut in (reply.get("cuts") or "").split():
            range_id, limit = cut.split("=")
            for one in [one for one, owner in self.open.items() if owner == range_id and one >= int(limit)]:
                self.close(one)

    def close(self, row: int) -> None:
        range_id = self.open.pop(row)
        if range_id not in self.open.values():
            del self.held[range_id]


class LogMachine(RuleBasedStateMachine):
    server: LogServer

    @initialize()
    def begin(self) -> None:
        self.keys = JobKeys(f"job_machine{next(_ids)}")
        self.client: Any = self.server.client()
        self.log = JobLog(self.server, self.keys, "cli", patience_s=10)
        self.pattern = f"sr:{{{self.keys.job_id}}}:*"
        self.num_submits = 0
        self.hands = {name: Hand(name, JobLog(self.server, self.keys, name), self.client, self.keys) for name in NAMES}
        self.reader = JobState()
        self.position = "0-0"
        self.seen: dict[str, Any] = {}
        self.news: list[OtherRange] = []
        self.snapshot: dict[bytes, tuple[bytes, int]] | None = None
        self.has_lost_tail = False
        self.submit("")

    def hand(self, name: str) -> Hand:
        if self.hands[name].lease is None:
            self.hands[name].join()
        return self.hands[name]

    @rule(name=workers, place=st.integers(0, 7), is_lost=rarely)
    def take_rows(self, name: str, place: int, *, is_lost: bool) -> None:
        hand = self.hand(name)
        if hand.lease is None:
            return
        reply = hand.log.claim(hand.lease, list(hand.held))
        others = hand.log.others(hand.lease) if reply["s"] == "BUSY" else []
        if others:
            one = others[place % len(others)]
            reply = hand.log.split(hand.lease, one, one.first + place % len(one.done))
        hand.take(reply, is_lost=is_lost)

    @rule(name=workers, place=st.integers(0, 7))
    def take_rows_on_old_news(self, name: str, place: int) -> None:
        hand = self.hand(name)
        if hand.lease is not None and self.news:
            one = self.news[place % len(self.news)]
            hand.take(hand.log.split(hand.lease, one, one.first + place % len(one.done)), is_lost=False)
            self.news = hand.log.others(hand.lease)

    @rule(name=workers, which=st.lists(st.integers(0, 11), max_size=4), ends=st.booleans(), is_lost=rarely)
    def write(self, name: str, which: list[int], *, ends: bool, is_lost: bool) -> None:
        hand = self.hands[name]
        for place in which:
            if hand.open and hand.lease is not None:
                row = sorted(hand.open)[place % len(hand.open)]
                hand.write(row, 1 + place % 3, ends=ends, is_lost=is_lost)

    @rule(name=workers, what=st.sampled_from(DISTURBANCES))
    def disturb(self, name: str, what: str) -> None:
        getattr(self, what)(name)

    def submit(self, _name: str) -> None:
        ranges = [{"first": i, "count": ROWS_PER_RANGE} for i in range(0, NUM_ROWS, ROWS_PER_RANGE)]
        data = {"name": "t", "rows": NUM_ROWS, "ranges": len(ranges), "seed": 1, "spec": {}, "identity": {}}
        self.num_submits += self.log.submit({**data, "base": "/", "invalid": 0}, NUM_ROWS, ranges)
        assert self.num_submits == 1

    def join(self, name: str) -> None:
        self.hands[name].join()

    def give_back(self, name: str) -> None:
        hand = self.hands[name]
        if hand.held and hand.lease is not None:
            range_id = min(hand.held)
            reply = hand.log.give_back(hand.lease, [range_id], {"code": "c", "message": "m"})
            if reply["s"] != "OK":
                hand.join()
                return
            for row in [row for row, owner in hand.open.items() if owner == range_id]:
                del hand.open[row]
            del hand.held[range_id]

    def stop_beyond_its_lease(self, name: str) -> None:
        """It does not know: what it does next is a zombie's."""
        self.client.delete(self.keys.lease(name))

    def leave(self, name: str) -> None:
        hand = self.hands[name]
        if hand.lease is not None:
            hand.log.leave(hand.lease, "SIGTERM")
            hand.forget_all()
            hand.lease = None

    def try_to_end(self, _name: str) -> None:
        reply = self.log.end("completed")
        assert reply["s"] in ("OPEN", "ENDED" if self.reader.ended else "OK")

    def remember(self, _name: str) -> None:
        if not self.has_lost_tail:
            names = list(self.client.scan_iter(self.pattern))
            self.snapshot = {key: (self.client.dump(key), max(self.client.pttl(key), 0)) for key in names}

    def lose_the_tail(self, _name: str) -> None:
        """The server was restarted from what it had on disk."""
        if self.snapshot is None or self.has_lost_tail:
            return
        self.client.delete(*self.client.scan_iter(self.pattern))
        for key, (content, ttl_ms) in self.snapshot.items():
            self.client.restore(key, ttl_ms, content)
        self.client.hset(self.keys.meta, "run_id", "0" * 40)
        self.has_lost_tail = True

    @invariant()
    def the_log_holds(self) -> None:
        entries = list(read_log(self.client, self.keys))
        assert [one.seq for one in entries] == list(range(1, len(entries) + 1))
        owners: dict[int, tuple[str, str, int]] = {}
        ended: set[int] = set()
        for one in entries:
            assert self.seen.setdefault(one.id, one) == one, "an id never names two entries"
            if one.type == "range.claimed":
                rows = range(one.data["first"], one.data["first"] + one.data["count"])
                owners |= dict.fromkeys(rows, (one.by, one.data["range"], one.data["claim"]))
            elif one.type == "request.completed":
                row = one.data["row"]
                assert row not in ended
                ended.add(row)
                assert owners[row] == (one.by, one.data["range"], one.data["claim"])
        bits = {row for row in range(NUM_ROWS) if self.client.getbit(self.keys.done, row)}
        assert bits == ended
        assert int(self.client.hget(self.keys.meta, "completed")) == len(ended)
        terminals = [one for one in entries if one.type == "request.completed"]
        assert len(read_payloads(self.client, self.keys, terminals)) == len(terminals)
        self.read_on(fold(entries))

    def read_on(self, whole: JobState) -> None:
        """Resume from the last entry read; a tail that is gone means reading again."""
        if self.position != "0-0" and not self.client.xrange(self.keys.log, self.position, self.position):
            self.reader, self.position = JobState(), "0-0"
        for entry in read_log(self.client, self.keys, self.position):
            self.reader.apply(entry)
            self.position = entry.id
        assert self.reader == whole
        self.reader.check()

    def teardown(self) -> None:
        """One worker that is well brings the job to its end."""
        for name in NAMES:
            self.client.delete(self.keys.lease(name))
        last = Hand("z", JobLog(self.server, self.keys, "z"), self.client, self.keys)
        last.join()
        while last.lease is not None:
            reply = last.log.claim(last.lease, list(last.held))
            last.take(reply, is_lost=False)
            for row in sorted(last.open):
                last.write(row, 1, ends=True, is_lost=False)
            if reply["s"] != "OK":
                break
        assert self.log.end("completed")["s"] in ("OK", "ENDED")
        self.the_log_holds()
        assert (self.reader.status, self.reader.completed) == ("completed", NUM_ROWS)
        self.client.delete(*self.client.scan_iter(self.pattern))


def test_nothing_is_lost_or_doubled_in_any_order(embedded: LogServer) -> None:
    machine = type("Machine", (LogMachine,), {"server": embedded})
    # No shrinking: the examples are the same at every run, and each step of a smaller one costs a disk write.
    limits = settings(
        max_examples=50, stateful_step_count=50, deadline=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=limits)
