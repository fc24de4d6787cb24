"""The streaming benchmark in small: it runs, and memory stays flat over a lazy input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench_stream import memory_growth, reader_pairs
from streamrunner.engine import LLM
from tiny_model import save_tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=16 << 20, enable_prefix_caching=False) as made:
        yield made


def test_memory_does_not_grow_with_the_number_of_prompts(llm: LLM) -> None:
    growth = memory_growth(llm, 4000, warm=1000)
    assert growth.peak_mib - growth.warm_mib < 30
    assert not llm._core._live


def test_a_pair_of_runs_is_measured(llm: LLM) -> None:
    [(fast, slow)] = reader_pairs(llm, 1)
    assert min(*fast, *slow) > 0
