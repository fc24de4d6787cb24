from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bench_log import collect, compare, percentile
from log_kit import ceiling
from log_kit.switch import MODES, SwitchedWriter, TimedCore
from streamrunner.engine.loop import EngineLoop, EngineRequest
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.synthetic import SyntheticCore, SyntheticModel

if TYPE_CHECKING:
    from pathlib import Path


def test_the_ratio_is_that_of_the_medians_of_blocks() -> None:
    off = [[1.0, 1.0, 9.0]] * 20
    ratio = compare([[1.02, 1.02, 0.1]] * 20, off)
    assert ratio == pytest.approx((1.02, 1.02, 1.02))
    assert str(ratio) == "+2.0 % (+2.0 … +2.0 %)".replace("(+2.0 …", "(+2.0 % …")
    assert percentile([[1.0, 2.0], [3.0, 4.0]], 0.99) == 4.0


def test_every_mode_gets_its_blocks_and_the_writer_is_left_as_it_was() -> None:
    core = TimedCore(SyntheticCore(SyntheticModel(step_ms=1), 2))  # type: ignore[arg-type]
    loop = EngineLoop(core, max_queued_steps=10_000)
    loop.start()
    for name in "ab":
        loop.add(EngineRequest(name, [1], SamplingParams(max_tokens=3000, ignore_eos=True)))
    blocks = collect(core, 2, 2)
    loop.close()
    assert {mode: [len(times) for times in blocks[mode]] for mode in MODES} == {mode: [5, 5] for mode in MODES}
    assert min(time for mode in MODES for block in blocks[mode] for time in block) >= 0.001
    assert SwitchedWriter.mode == "steps"


def test_nothing_goes_out_while_events_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    job = SimpleNamespace(spec=SimpleNamespace(events=SimpleNamespace(flush_ms=50, retention="live")))
    log = SimpleNamespace(may_lose_tail=False, take_outage=lambda: None)
    anything: Any = SimpleNamespace
    writer = SwitchedWriter(anything(**vars(job)), anything(**vars(log)), anything(), lambda *_: None, str)
    monkeypatch.setattr(writer, "_send", lambda flush: sent.append(flush) or {"s": "OK"})
    for mode in MODES:
        monkeypatch.setattr(SwitchedWriter, "mode", mode)
        writer.add_event("progress", {})
        writer.flush([])
    assert [len(flush.events) for flush in sent] == [1, 1]


def test_the_ceiling_weighs_every_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "NUM_ROWS", 16)
    monkeypatch.setattr(ceiling, "NUM_TOKENS", 32)
    found = ceiling.measure_ceiling(tmp_path)
    assert found.tokens == 512
    assert found.tokens_s > 0
    assert 4 < found.memory_bytes < 400
    assert 4 < found.aof_bytes < 400
    assert "tokens/s" in str(found)
