"""Two nodes of a Redis Cluster on this machine, each with half of the slots."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLOTS = 16384


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def two_nodes(binary: str, folder: Path) -> Iterator[list[int]]:
    """Their ports."""
    ports, running = [], []
    for name in ("one", "two"):
        place, port = folder / name, free_port()
        place.mkdir()
        options = ["--port", str(port), "--cluster-port", str(free_port()), "--cluster-enabled", "yes"]
        options += ["--dir", str(place), "--appendonly", "yes", "--appendfsync", "always"]
        running.append(subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL))
        ports.append(port)
    try:
        join_nodes(ports)
        yield ports
    finally:
        for process in running:
            process.kill()
            process.wait()


def join_nodes(ports: list[int]) -> None:
    clients: list[Any] = [redis.Redis(port=port, decode_responses=True) for port in ports]
    wait_until(lambda: all(answers(client) for client in clients))
    buses = [client.config_get("cluster-port")["cluster-port"] for client in clients]
    half = SLOTS // 2
    clients[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, half - 1)
    clients[1].execute_command("CLUSTER", "ADDSLOTSRANGE", half, SLOTS - 1)
    clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", ports[1], buses[1])
    wait_until(lambda: all(client.cluster("info")["cluster_state"] == "ok" for client in clients))
    for client in clients:
        client.close()


def answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
