"""Servers of either kind behave alike, and external ones are checked before a job trusts them."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis

from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.errors import LogUnreachable, SinkError
from streamrunner.sinks.server import ExternalServer, open_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamrunner.sinks.server import LogServer


def test_what_is_written_is_read_back_as_bytes(log_server: LogServer) -> None:
    with log_server.client() as writer, log_server.client() as reader:
        assert writer.xadd("s", {"f": "v"}, id="1-0") == b"1-0"
        assert reader.xrange("s") == [(b"1-0", {b"f": b"v"})]
        assert writer.connection_pool is not reader.connection_pool


def test_clients_never_repeat_a_command_on_their_own(log_server: LogServer) -> None:
    for blocking, patience in ((False, 10.0), (True, None)):
        with log_server.client(blocking=blocking) as client:
            client.ping()
            connection = client.connection_pool.get_connection()
            assert connection.retry.get_retries() == 0
            assert connection.retry_on_error == []
            assert connection.socket_timeout == patience
            assert connection.protocol == 2
            assert type(connection._parser).__name__ == "_HiredisParser"
            client.connection_pool.release(connection)


def test_a_lost_reply_is_an_error_and_not_a_second_entry(debian_redis: str) -> None:
    with ReplyLosingProxy(debian_redis.removeprefix("unix://")) as port:
        server = ExternalServer(debian_redis)
        lossy = ExternalServer.__new__(ExternalServer)
        lossy._options = {"host": "127.0.0.1", "port": port}
        with lossy.client() as client, server.client() as direct:
            with pytest.raises(redis.ConnectionError):
                client.pipeline(transaction=True).xadd("s", {"f": "v"}).execute()
            assert direct.xlen("s") == 1


def test_a_blocking_client_outwaits_the_command_timeout_of_others(log_server: LogServer) -> None:
    with log_server.client(blocking=True) as reader, log_server.client() as writer:
        got: list[object] = []
        thread = threading.Thread(target=lambda: got.extend(reader.xread({"s": "0"}, block=0)))
        thread.start()
        writer.xadd("s", {"f": "v"}, id="1-0")
        thread.join(5)
        assert got == [[b"s", [(b"1-0", {b"f": b"v"})]]]


def test_a_durable_server_needs_no_notice_and_revives_at_once(log_server: LogServer) -> None:
    assert log_server.notices() == ()
    log_server.revive()


def test_a_url_opens_that_server_and_none_the_private_one(debian_redis: str, data_dir: Path) -> None:
    external, private = open_server(debian_redis, data_dir), open_server(None, data_dir)
    assert (type(external), external.local, external.address) == (ExternalServer, False, debian_redis)
    assert (type(private), private.local) == (EmbeddedServer, True)
    assert private.address == f"unix://{data_dir}/server/server.sock"
    external.close()
    private.close()


def test_nobody_at_the_url_is_told_within_three_seconds_with_the_remedy() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"redis://:s3cret@127.0.0.1:{free.getsockname()[1]}/0"
    begin = time.monotonic()
    with pytest.raises(LogUnreachable, match="--redis-url") as caught:
        ExternalServer(url)
    assert time.monotonic() - begin < 3
    assert "s3cret" not in caught.value.message


def test_a_server_that_accepts_and_says_nothing_is_unreachable_within_three_seconds() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        begin = time.monotonic()
        with pytest.raises(LogUnreachable, match="no answer within"):
            ExternalServer(f"redis://127.0.0.1:{mute.getsockname()[1]}")
        assert time.monotonic() - begin < 3


def test_wrong_credentials_are_refused_without_being_shown(redis_factory: Callable[..., str]) -> None:
    url = redis_factory(requirepass="right")
    with pytest.raises(SinkError) as caught:
        ExternalServer(f"{url}?password=s3cret")
    assert caught.value.code == "log_auth"
    assert "s3cret" not in caught.value.message
    with ExternalServer(f"{url}?password=right") as server, server.client() as client:
        assert client.ping()
        assert "right" not in server.address


def test_an_evicting_server_is_refused(redis_factory: Callable[..., str]) -> None:
    with pytest.raises(SinkError, match="allkeys-lru") as caught:
        ExternalServer(redis_factory(maxmemory_policy="allkeys-lru"))
    assert caught.value.code == "server_policy"


def test_a_forgetful_server_is_taken_with_a_notice(redis_factory: Callable[..., str]) -> None:
    [lazy] = ExternalServer(redis_factory(appendfsync="everysec")).notices()
    assert "2 seconds" in lazy
    [forgetful] = ExternalServer(redis_factory(appendonly="no")).notices()
    assert "last snapshot" in forgetful


def test_a_server_that_forbids_questions_is_taken_with_a_notice(debian_redis: str) -> None:
    with ExternalServer(debian_redis) as admin, admin.client() as client:
        client.acl_setuser("runner", enabled=True, passwords=["+pw"], keys=["*"], commands=["+xadd", "+info"])
        client.acl_setuser("mute", enabled=True, passwords=["+pw"], keys=["*"], commands=["+xadd"])
    [notice] = ExternalServer(f"{debian_redis}?username=runner&password=pw").notices()
    assert "does not tell its appendfsync" in notice
    mute = ExternalServer(f"{debian_redis}?username=mute&password=pw")
    assert "does not tell how it persists" in mute.notices()[0]
    mute.revive()


class ReplyLosingProxy:
    """Passes commands on and cuts the connection when the reply to an EXEC comes: done, but nobody is told."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        return int(self.listener.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client, socket.socket(socket.AF_UNIX) as server:
                server.connect(self.path)
                while request := client.recv(65536):
                    server.sendall(request)
                    reply = server.recv(65536)
                    if b"EXEC" in request:
                        break
                    client.sendall(reply)


@pytest.fixture(autouse=True)
def no_thread_outlives_a_test() -> Iterator[None]:
    yield
    left = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    assert left == []
