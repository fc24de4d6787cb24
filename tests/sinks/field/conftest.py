"""One server for all of a file's reports, and a fresh job for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from desk import Desk
from redis_process import RedisProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def process(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    made = RedisProcess(redis_binary, tmp_path_factory.mktemp("field"))
    yield made
    made.kill()


@pytest.fixture
def desk(process: RedisProcess) -> Desk:
    return Desk(process)
