"""The append path over a connection that breaks: every command of it, in every way, leaves the log of an undisturbed
run.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from proxy import Command, Fault, Proxy
from redis_process import RedisProcess

from streamrunner.sinks.errors import LogUnreachable, SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import (
    ClaimedRange,
    Flush,
    JobLog,
    RetriedCounts,
    RetriedRange,
    RowToCancel,
    Terminal,
    WorkerLease,
    claimed_range,
)
from streamrunner.sinks.reader import read_log, read_payloads, read_steps
from streamrunner.sinks.server import ExternalServer
from streamrunner.sinks.wire import StepDelta, encode_deltas

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INFO = {"host": "here", "pid": 1, "fingerprint": {}}
RANGES = [{"first": 0, "count": 2}, {"first": 2, "count": 2}]
_ids = itertools.count()


def completed(row: int, claimed: ClaimedRange) -> Terminal:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    data = {
        "row": row,
        "custom_id": f"r{row}",
        "attempt": 1,
        "range": claimed.id,
        "claim": claimed.claim,
        "usage": usage,
    }
    return Terminal(row, claimed.id, claimed.claim, "request.completed", data, b'{"choices":[]}', 3, 4)


def flush(n: int, *terminals: Terminal, events: Any = ()) -> Flush:
    return Flush(n, encode_deltas([StepDelta(0, 1, 0, n, [n], "x")]), "", events, terminals)


def play(server: ExternalServer, keys: JobKeys) -> JobLog:
    """A job's whole life, with each function of the library at least once."""
    log = JobLog(server, keys, "test", patience_s=5.0)
    log.submit({"name": "t"}, 4, RANGES)
    log.join("dead", "old", INFO)
    log.lost("dead", "its process is gone")
    lease = WorkerLease("w", log.join("w", "token", INFO)["epoch"], "token")
    first = claimed_range(log.claim(lease, []))
    log.beat(lease)
    log.flush(lease, flush(1, events=[("notice", {"code": "c", "message": "m"})]))
    log.flush(lease, flush(2, completed(0, first), completed(1, first)))
    second = claimed_range(log.claim(lease, []))
    share_last_row(log)
    log.control("01", "pause")
    log.control("02", "resume")
    log.flush(lease, flush(3, completed(2, second)))
    log.leave(lease, "SIGTERM")
    log.forget("dead", 60_000)
    last = log.end("completed")["ctl"]
    event = {"row": 3, "custom_id": "r3", "attempt": 2}
    spec = {"first": 2, "count": 2, "attempts": {"3": 2}}
    log.retry("04", last, [RetriedRange(spec, [event])], RetriedCounts(0, 1, 0))
    return log


def share_last_row(log: JobLog) -> None:
    """Another worker takes row 3, gives it back, takes it again; then somebody cancels it."""
    other = WorkerLease("o", log.join("o", "token-o", INFO)["epoch"], "token-o")
    [held] = log.others(other)
    log.split(other, held, 3)
    mine = claimed_range(log.claim(other, []))
    log.give_back(other, [mine.id], {"code": "no_input", "message": "m"})
    again = claimed_range(log.claim(other, []))
    data = {"row": 3, "custom_id": "r3", "attempt": 1, "range": again.id, "error": {}}
    log.cancel_row("03", RowToCancel(3, 1, again.id, data, b"{}"))
    log.leave(other, "SIGTERM")


def history(client: Any, keys: JobKeys) -> list[Any]:
    """Everything a reader can see, without the times."""
    entries = list(read_log(client, keys))
    payloads = read_payloads(client, keys, [one for one in entries if one.type == "request.completed"])
    steps = [(one.epoch, one.n, one.deltas) for one in read_steps(client, keys, "w")]
    meta = client.hgetall(keys.meta)
    counts = [meta[name] for name in (b"status", b"completed", b"completion_tokens", b"epoch", b"claim")]
    return [[one._replace(time=0) for one in entries], payloads, steps, counts, client.xpending(keys.work, "workers")]


@pytest.fixture(scope="module")
def redis_server(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(redis_binary, tmp_path_factory.mktemp("r"))
    yield process
    process.kill()


@pytest.fixture
def undisturbed(redis_server: RedisProcess) -> tuple[list[str], list[Any]]:
    """Function names in the order of their calls, and the history they make."""
    keys = JobKeys(f"job_{next(_ids)}")
    with Proxy(redis_server.url) as proxy:
        play(ExternalServer(proxy.url), keys)
        calls = [name for name in proxy.names if name.startswith("sr_v1_")]
    return calls, history(redis_server.client(), keys)


def disturbed(redis_server: RedisProcess, call: int, fault: Fault | bytes) -> list[Any]:
    """The history of a run whose function call number `call` meets a fault, once."""
    calls = itertools.count()
    keys = JobKeys(f"job_{next(_ids)}")

    def judge(command: Command) -> Fault | bytes | None:
        return fault if command.name.startswith("sr_v1_") and next(calls) == call else None

    with Proxy(redis_server.url, judge) as proxy:
        log = play(ExternalServer(proxy.url), keys)
    assert log.take_outage() is not None, "the fault has happened, and is on record"
    return history(redis_server.client(), keys)


REFUSALS = [
    b"-LOADING Redis is loading the dataset in memory\r\n",
    b"-READONLY You can't write against a read only replica.\r\n",
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    b"-MISCONF Errors writing to the AOF file: No space left on device\r\n",
    b"-NOREPLICAS Not enough good replicas to write.\r\n",
    b"-CLUSTERDOWN The cluster is down\r\n",
    b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
    b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    b"-BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.\r\n",
    b"-ERR Function not found\r\n",
    b"-ERR max number of clients reached\r\n",
]


@pytest.mark.redis
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name)
def test_every_command_of_the_append_path_survives_a_broken_connection(
    redis_server: RedisProcess, undisturbed: tuple[list[str], list[Any]], fault: Fault
) -> None:
    calls, expected = undisturbed
    functions = "submit join beat claim held split give_back flush control cancel_row leave lost forget end retry"
    assert set(calls) == {f"sr_v1_{name}" for name in functions.split()}
    for call, name in enumerate(calls):
        found = disturbed(redis_server, call, fault)
        assert found == expected, f"{fault.name} of call {call}, {name}"


@pytest.mark.redis
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda text: text.split()[0].decode())
def test_a_server_that_refuses_for_a_while_is_waited_for(
    redis_server: RedisProcess, undisturbed: tuple[list[str], list[Any]], refusal: bytes
) -> None:
    calls, expected = undisturbed
    found = disturbed(redis_server, calls.index("sr_v1_flush"), refusal)
    assert found == expected


@pytest.mark.redis
@pytest.mark.parametrize(
    "refusal", [b"-WRONGTYPE Operation against a key\r\n", b"-ERR sr_v1: row is not a whole number\r\n"]
)
def test_a_refusal_that_no_waiting_mends_comes_out_at_once(redis_server: RedisProcess, refusal: bytes) -> None:
    from redis.exceptions import ResponseError

    with pytest.raises(ResponseError):
        disturbed(redis_server, 4, refusal)


@pytest.mark.redis
def test_a_user_without_the_right_is_told_so_at_once_and_where_the_rights_are(redis_server: RedisProcess) -> None:
    refusal = b"-NOPERM User worker has no permissions to run the 'fcall' command\r\n"
    with pytest.raises(SinkError, match=r"users\.acl") as caught:
        disturbed(redis_server, 4, refusal)
    assert caught.value.code == "log_denied"


@pytest.mark.redis
def test_a_log_that_refuses_for_longer_than_the_patience_is_given_up_with_its_reason(
    redis_server: RedisProcess,
) -> None:
    def judge(command: Command) -> bytes | None:
        return REFUSALS[2] if command.name == "sr_v1_submit" else None

    with Proxy(redis_server.url, judge) as proxy:
        log = JobLog(ExternalServer(proxy.url), JobKeys("job_oom"), "t", patience_s=0.2)
        with pytest.raises(LogUnreachable, match="out of memory: raise its maxmemory"):
            log.submit({}, 4, RANGES)


@pytest.mark.redis
def test_a_reset_within_a_pipeline_of_reads_is_an_error_and_writes_nothing(redis_server: RedisProcess) -> None:
    """Readers pipeline; whatever breaks there, redis-py must not send the pipeline again on its own."""
    import redis

    def judge(command: Command) -> Fault | None:
        return Fault.RESET_AFTER if command.name == "XADD" and command.raw.endswith(b"2\r\n") else None

    keys = JobKeys("job_pipe")
    with Proxy(redis_server.url, judge) as proxy, ExternalServer(proxy.url).client() as client:
        pipe = client.pipeline(transaction=False)
        for value in ("1", "2", "3"):
            pipe.xadd(keys.log, {"f": value})
        with pytest.raises(redis.ConnectionError):
            pipe.execute()
    assert redis_server.client().xlen(keys.log) == 2


@pytest.mark.redis
def test_a_server_killed_and_started_again_goes_on_with_the_same_numbers(redis_binary: str, tmp_path: Path) -> None:
    process = RedisProcess(redis_binary, tmp_path)
    log = JobLog(ExternalServer(process.url), JobKeys("job_k"), "t", patience_s=10.0)
    log.submit({}, 4, RANGES)
    lease = WorkerLease("w", log.join("w", "token", INFO)["epoch"], "token")
    first = claimed_range(log.claim(lease, []))
    log.flush(lease, flush(1, completed(0, first)))
    process.restart()
    assert log.flush(lease, flush(1, completed(0, first)))["s"] == "DUP"
    assert isinstance(log.flush(lease, flush(2, completed(1, first)))["t"][0], int)
    [*_, last] = read_log(process.client(), JobKeys("job_k"))
    assert (last.type, last.gen) == ("request.completed", 1), "another run of the server: gen rose"
    process.kill()
