from __future__ import annotations

from streamrunner.engine.step import RequestStep, StepOutput
from streamrunner.runner.meter import Meter
from streamrunner.sinks.events import validate_event


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(num_tokens: int, *, prompt: int = 0, running: int = 2) -> StepOutput:
    return StepOutput(
        outputs=(RequestStep("r", tuple(range(num_tokens)), None, None, None, None),),
        num_running=running, num_waiting=0, num_batched_tokens=num_tokens, num_prompt_tokens=prompt,
        num_cached_tokens=0, kv_cache_usage=0.123456, num_preemptions=0, step_ms=1.0,
    )  # fmt: skip


def test_progress_comes_once_an_interval() -> None:
    clock = Clock()
    meter = Meter(1.0, clock)
    meter.take(step(3))
    assert meter.due((), 2) is None
    clock.now += 1.0
    assert meter.due((), 2) is not None
    assert meter.due((), 2) is None
    clock.now += 0.5
    assert meter.due((), 2) is None


def test_nothing_is_said_before_the_engine_has_made_a_step() -> None:
    clock = Clock()
    meter = Meter(1.0, clock)
    clock.now += 10.0
    assert meter.due((), 5) is None


def test_rates_are_of_the_last_half_minute_and_totals_of_the_worker() -> None:
    clock = Clock()
    meter = Meter(1.0, clock)
    meter.take(step(30, prompt=100))
    clock.now += 2.0
    first = meter.due((), 10, queue_wait_ms=12.345)
    meter.take(step(10))
    clock.now += 2.0
    second = meter.due((), 10)
    clock.now += 36.0
    meter.take(step(36))
    third = meter.due((), 10)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first["output_tokens"], first["output_tokens_per_s"], first["prompt_tokens"]) == (30, 15.0, 100)
    assert (second["output_tokens"], second["output_tokens_per_s"]) == (40, 10.0)
    assert (third["output_tokens"], third["output_tokens_per_s"]) == (76, 1.0)
    assert (first["running"], first["waiting"], first["kv_cache_usage"], first["queue_wait_ms"]) == (2, 8, 0.1235, 12.3)


def test_rows_that_just_ended_are_never_fewer_than_none_waiting() -> None:
    clock = Clock()
    meter = Meter(1.0, clock)
    meter.take(step(1, running=5))
    clock.now += 1.0
    said = meter.due((), 3)
    assert said is not None
    assert said["waiting"] == 0


def test_what_is_said_is_a_progress_event_of_the_vocabulary() -> None:
    clock = Clock()
    meter = Meter(1.0, clock)
    meter.take(step(1))
    clock.now += 1.0
    said = meter.due((), 1)
    assert said is not None
    validate_event("progress", said)
