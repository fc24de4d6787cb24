"""The connection of a follower, blocking or in an event loop: carries out what it wants done, and nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

from streamrunner.runner.follower import Doing, Pause, Reopen
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.reader import Command, perform

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from streamrunner.sinks.server import LogServer

T = TypeVar("T")


class Line:
    """A connection of its own that carries out what a follower wants done. Not thread-safe."""

    def __init__(self, server: LogServer) -> None:
        self._server = server
        self._client: redis.Redis | None = None
        self._was_dropped = False

    def run(self, doing: Doing[T]) -> T:
        """Drive a follower's generator to its result; what fails on the way is thrown into it."""
        from redis.exceptions import ConnectionError as Disconnected
        from redis.exceptions import RedisError

        try:
            todo = next(doing)
            while True:
                try:
                    reply = self._carry_out(todo, Disconnected)
                except (RedisError, OSError, SinkError) as error:
                    todo = doing.throw(error)
                else:
                    todo = doing.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException:
            # An interrupted read leaves a reply on the wire that the next command would take for its own.
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection; the next run makes a new one."""
        client, self._client = self._client, None
        self._was_dropped = True
        if client is not None:
            client.close()
            if pool := getattr(client, "connection_pool", None):
                pool.disconnect()

    def _carry_out(self, todo: list[Command] | Pause | Reopen, disconnected: type[Exception]) -> Any:
        if isinstance(todo, Pause):
            time.sleep(todo.seconds)
            return None
        if isinstance(todo, Reopen):
            self.close()
            self._server.revive()
            self._client = _own_connection(self._server)
            return None
        if self._client is None:
            if self._was_dropped:
                raise disconnected("the connection was dropped")
            self._client = _own_connection(self._server)
        return perform(self._client, todo)


class AsyncLine:
    """The same in an event loop. A cancelled run loses nothing: the next one connects anew and reads on."""

    def __init__(self, server: LogServer) -> None:
        self._server = server
        self._client: redis.asyncio.Redis | None = None
        self._was_dropped = False

    async def run(self, doing: Doing[T]) -> T:
        """Drive a follower's generator to its result; what fails on the way is thrown into it."""
        from redis.exceptions import ConnectionError as Disconnected
        from redis.exceptions import RedisError

        try:
            todo = next(doing)
            while True:
                try:
                    reply = await self._carry_out(todo, Disconnected)
                except (RedisError, OSError, SinkError) as error:
                    todo = doing.throw(error)
                else:
                    todo = doing.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException:
            doing.close()
            await self.close()
            raise

    async def close(self) -> None:
        """Drop the connection; the next run makes a new one."""
        client, self._client = self._client, None
        self._was_dropped = True
        if client is not None:
            await client.aclose()
            if pool := getattr(client, "connection_pool", None):
                await pool.disconnect()

    async def _carry_out(self, todo: list[Command] | Pause | Reopen, disconnected: type[Exception]) -> Any:
        if isinstance(todo, Pause):
            return await asyncio.sleep(todo.seconds)
        if isinstance(todo, Reopen):
            await self.close()
            await asyncio.to_thread(self._server.revive)
            self._client = self._server.async_client()
            return None
        if self._client is None:
            if self._was_dropped:
                raise disconnected("the connection was dropped")
            self._client = self._server.async_client()
        return await _perform(self._client, todo)


async def _perform(client: redis.asyncio.Redis, commands: list[Command]) -> list[Any]:
    raw: Any = client
    if len(commands) == 1:
        return [await raw.execute_command(*commands[0])]
    async with raw.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        replies: list[Any] = await pipe.execute()
    return replies


def _own_connection(server: LogServer) -> redis.Redis:
    """A client of one connection where there is such a thing: a pool (a Cluster's, too) replaces a broken one silently.

    What a server lost meanwhile is then noticed at the first entry of its next run, and not before.
    """
    pooled: Any = server.client(blocking=True)
    single: redis.Redis = pooled.client() if hasattr(pooled, "client") else pooled
    return single
