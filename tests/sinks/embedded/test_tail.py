"""A job's log whose file lost or garbled its end: what comes back is a prefix, with entry, payload and bit together."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, Terminal, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_log, read_payloads, read_steps
from streamrunner.sinks.wire import LogEntry, StepDelta, encode_deltas

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrunner.sinks.embedded.files import ServerFiles

KEYS = JobKeys("job_tail")
ROWS = 6
GROUP = b"*1\r\n$5\r\nMULTI\r\n"
CUTS_PER_GROUP = 2


@dataclass(frozen=True)
class Tail:
    """A killed server's file, where its last three groups begin, and the history it held."""

    data_dir: Path
    path: Path
    content: bytes
    start: int
    entries: list[LogEntry]

    def revive(self, content: bytes) -> int:
        """Start a server on other content and check all that readers rely on; return how many entries it has."""
        self.path.write_bytes(content)
        with EmbeddedServer(self.data_dir) as server:
            client: Any = server.client()
            entries = list(read_log(client, KEYS))
            ended = [one for one in entries if one.type == "request.completed"]
            assert entries == self.entries[: len(entries)], "a prefix"
            assert set(read_payloads(client, KEYS, ended)) == {one.id for one in ended}, "payloads with their entries"
            assert [client.getbit(KEYS.done, row) for row in range(ROWS)].count(1) == len(ended), "bits with them"
            assert int(client.hget(KEYS.meta, "completed")) == len(ended), "and counters"
            assert len(list(read_steps(client, KEYS, "w"))) == len(ended), "and tokens"
            kill(server)
        return len(entries)


def kill(server: EmbeddedServer) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)


@pytest.fixture
def tail(data_dir: Path, files: ServerFiles) -> Tail:
    with EmbeddedServer(data_dir) as server:
        log = JobLog(server, KEYS, "w", patience_s=5)
        log.submit({"name": "t"}, ROWS, [{"first": 0, "count": ROWS}])
        lease = WorkerLease("w", log.join("w", "t", {})["epoch"], "t")
        claimed = claimed_range(log.claim(lease, []))
        for row in range(ROWS):
            end = Terminal(row, claimed.id, claimed.claim, "request.completed", {"row": row}, b'{"a":1}', 1, 1)
            steps = encode_deltas([StepDelta(row, claimed.claim, 0, 0, [row], "x")])
            log.flush(lease, Flush(row + 1, steps, "", [], [end]))
        entries = list(read_log(server.client(), KEYS))
        kill(server)
    [path] = files.aof.glob("*.incr.aof")
    content = path.read_bytes()
    start = len(content)
    for _ in range(3):
        start = content.rindex(GROUP, 0, start)
    return Tail(data_dir, path, content, start, entries)


def cuts(tail: Tail) -> list[int]:
    """Lengths over the last three groups: at their borders, and some within."""
    borders = [tail.start, len(tail.content)]
    position = tail.start
    while (position := tail.content.find(GROUP, position + 1)) >= 0:
        borders.append(position)
    near = {border + offset for border in borders for offset in (-1, 0, 1)}
    step = (len(tail.content) - tail.start) // (3 * CUTS_PER_GROUP)
    return sorted(
        n for n in {*near, *range(tail.start, len(tail.content), step)} if tail.start <= n <= len(tail.content)
    )


FILLINGS: dict[str, Callable[[int], bytes]] = {
    "cut": lambda _: b"",
    "zeros": bytes,
    "garbage": lambda length: random.Random(length).randbytes(length),
}


@pytest.mark.parametrize("filling", FILLINGS)
def test_an_end_lost_in_the_last_three_groups_leaves_a_prefix(tail: Tail, filling: str) -> None:
    lengths = [tail.revive(tail.content[:n] + FILLINGS[filling](len(tail.content) - n)) for n in cuts(tail)]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (len(tail.entries) - 3, len(tail.entries))


def rows_ended(tail: Tail) -> list[int]:
    with EmbeddedServer(tail.data_dir) as server:
        try:
            return [one.data["row"] for one in read_log(server.client(), KEYS) if one.type == "request.completed"]
        finally:
            kill(server)


def test_one_bit_flipped_earlier_is_refused_in_words_or_doubles_no_row(tail: Tail) -> None:
    """The file has no checksums: a bit within a text goes unseen. What breaks the file's form is refused."""
    refusals: list[str] = []
    begin = tail.content.index(GROUP)
    # The first byte of a group for certain, and others wherever they fall: texts, ids, lengths.
    for position in [begin, *random.Random(5).sample(range(begin, tail.start), 12)]:
        content = bytearray(tail.content)
        content[position] ^= 1 << position % 7
        tail.path.write_bytes(content)
        try:
            rows = rows_ended(tail)
        except SinkError as error:
            refusals.append(error.code)
            assert tail.path.read_bytes() == bytes(content), "nothing is cut"
        except (ValueError, KeyError):
            continue  # the bit was in an entry's own JSON
        else:
            assert len(rows) == len(set(rows))
    assert refusals
    assert set(refusals) <= {"aof_damaged", "server_failed"}
