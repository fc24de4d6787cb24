"""Rows that change workers in the middle, on a real model: what comes out equals an undisturbed run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.engine import start_engine
from streamrunner.runner.lease import LeaseKeeper
from streamrunner.runner.worker import Outcome
from streamrunner.sinks.reader import read_payloads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Rig = Any
INFO = {"host": "h", "pid": 1, "fingerprint": {}}


@pytest.fixture
def resuming_rows() -> list[dict[str, Any]]:
    """Of different lengths, sampled and greedy, with and without log-probabilities, one and two choices."""
    return [
        {
            "prompt": f"Count from {i}: " + "on and on, " * (i % 4),
            "max_tokens": 120 + 5 * i,
            "temperature": 0.0 if i % 4 == 0 else 0.9,
            "n": 1 + i % 2,
            **({"logprobs": 2} if i % 3 else {}),
        }
        for i in range(12)
    ]


class Lender:
    """Workers with engines of their own on the tiny model."""

    def __init__(self, rig: Rig, cache: Path) -> None:
        self.rig, self.cache = rig, cache
        self.admitted: list[Any] = []

    def run(self, name: str, should_stop: Callable[[], bool]) -> Outcome:
        engine = start_engine(self.rig.job, self.cache, lambda _message: None)
        add = engine.loop.add

        def noted(request: Any) -> None:
            self.admitted.append(request)
            add(request)

        engine.loop.add = noted  # type: ignore[method-assign]
        log = self.rig.log(name)
        lease = LeaseKeeper(name, self.rig.log(name), INFO)
        joined = lease.join(log)
        worker = engine.worker(self.rig.job, log, self.rig.server.client(), lease, should_stop, self.rig.said.append)
        outcome = worker.run(joined)
        engine.close()
        lease.stop()
        if outcome is Outcome.STOPPED:
            self.rig.log("t").lost(name, "killed")
        return outcome

    def choices(self) -> dict[int, list[Any]]:
        """Texts, log-probabilities and endings by row."""
        terminals = [one for one in self.rig.entries() if one.type.startswith("request.")]
        assert len({one.data["row"] for one in terminals}) == len(terminals)
        payloads = read_payloads(self.rig.client, self.rig.job.keys, terminals)
        return {one.data["row"]: json.loads(payloads[one.id])["choices"] for one in terminals}


def num_durable(rig: Rig, worker: str) -> int:
    from streamrunner.sinks.reader import read_steps

    entries = read_steps(rig.client, rig.job.keys, worker)
    return sum(len(delta.token_ids) for entry in entries for delta in entry.deltas)


def test_a_row_that_two_workers_died_over_equals_an_undisturbed_one(
    make_rig: Callable[..., Rig], resuming_rows: list[dict[str, Any]], tiny_model: Path, tmp_path: Path
) -> None:
    undisturbed = Lender(make_rig(resuming_rows, str(tiny_model), max_model_len=512), tmp_path / "cache")
    assert undisturbed.run("u", lambda: False) is Outcome.ENDED
    rig = make_rig(resuming_rows, str(tiny_model), max_model_len=512)
    lender = Lender(rig, tmp_path / "cache")
    # Killed once a few hundred, then some more tokens are in the log: nothing is flushed on the way out.
    assert lender.run("a", lambda: num_durable(rig, "a") > 300) is Outcome.STOPPED
    assert lender.run("b", lambda: num_durable(rig, "b") > 900) is Outcome.STOPPED
    before = len(lender.admitted)
    assert lender.run("c", lambda: False) is Outcome.ENDED
    assert any(len(request.generated) > 20 for request in lender.admitted[before:]), "durable tokens are prefilled"
    assert lender.choices() == undisturbed.choices()
    assert any(choice["logprobs"] for choices in lender.choices().values() for choice in choices)
