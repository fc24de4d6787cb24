"""`validate --dry-run`: what is counted, what is predicted from what, and that it says so."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.cli.fail import guarded
from streamrunner.runner.cli.main import cli
from streamrunner.runner.dry_run import TokenCounts
from streamrunner.runner.pace import StepCost
from streamrunner.runner.speed import LastJob, Measured, last_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrunner.sinks.embedded.server import EmbeddedServer

COUNTS = TokenCounts(array("I", [10] * 100), sequences=100, output_limit=6400, longest_limit=64)


@pytest.fixture
def dry_run(
    tmp_path: Path, data_dir: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any], str]]:
    def run(rows: list[dict[str, Any]], *options: str, **sections: Any) -> tuple[int, dict[str, Any], str]:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = {
            "model": str(tiny_model), "input": {"path": "rows.jsonl"}, "sampling": {"max_tokens": 8},
            "engine": {"max_model_len": 64, "kv_cache_memory": 1 << 22}, **sections,
        }  # fmt: skip
        (tmp_path / "job.yaml").write_text(json.dumps(spec))
        words = ["validate", str(tmp_path / "job.yaml"), "--dry-run", "--json", "--data-dir", str(data_dir), *options]
        code = guarded(lambda: cli(words, standalone_mode=False))
        written = capsys.readouterr()
        return code, json.loads(written.out), written.err

    return run


def prompts(*lengths: int) -> list[dict[str, Any]]:
    """The tiny model has a token a byte."""
    return [{"prompt": "x" * length} for length in lengths]


def test_every_row_is_counted_in_tokens(dry_run: Callable[..., Any]) -> None:
    code, told, _ = dry_run(prompts(*range(1, 41)), "--speed", "none")
    dry = told["dry_run"]
    assert code == 0
    assert (dry["rows"], dry["runnable"], dry["over_limit"]) == (40, 40, 0)
    assert dry["prompt_tokens"] == {"total": 820, "p50": 20, "p95": 38, "max": 40}
    assert dry["output_tokens"]["at_most"] == 320
    assert dry["time"] is None


def test_rows_that_cannot_run_are_told_by_code_before_they_cost_anything(dry_run: Callable[..., Any]) -> None:
    rows = [*prompts(5, 64, 70, 100), {"prompt": "x", "temperature": "hot"}]
    _, told, _ = dry_run(rows, "--speed", "none")
    dry = told["dry_run"]
    assert (dry["rows"], dry["runnable"], dry["over_limit"]) == (5, 1, 3)
    assert dry["failing"]["context_length_exceeded"] == 3
    assert sum(dry["failing"].values()) == 4


def test_answers_have_the_room_that_prompts_leave_and_count_for_every_choice(dry_run: Callable[..., Any]) -> None:
    _, told, _ = dry_run(prompts(60, 10), "--speed", "none", sampling={"max_tokens": 8, "n": 3})
    assert told["dry_run"]["output_tokens"]["at_most"] == 3 * (4 + 8)


def test_memory_is_weights_cache_and_log(dry_run: Callable[..., Any]) -> None:
    _, told, _ = dry_run(prompts(*range(1, 41)), "--speed", "none", engine={"max_model_len": 64, "dtype": "float32"})
    memory = told["dry_run"]["memory_bytes"]
    assert memory["weights"] % 4 == 0
    assert 100_000 < memory["weights"] < 1_000_000
    assert memory["cache"] == 2 << 30
    assert 40 * 500 < memory["log"] < 40 * 5000


def test_without_a_finished_job_the_machine_is_measured_and_that_is_said(dry_run: Callable[..., Any]) -> None:
    _, told, err = dry_run(prompts(*range(1, 21)))
    time = told["dry_run"]["time"]
    assert time["source"] == "measured"
    assert time["at_most_s"] > 0
    assert time["output_tokens_per_s"] > 0
    assert "measuring this machine" in err


def test_a_model_that_is_not_there_is_4(dry_run: Callable[..., Any]) -> None:
    code, _, err = dry_run(prompts(1), "--speed", "none", model="./nowhere")
    assert code == 4
    assert err.startswith("error: ")


def finish(server: EmbeddedServer, job_id: str, model: str, tokens: int) -> None:
    from streamrunner.sinks.directory import JobDirectory
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.log import JobLog

    client: Any = server.client()
    keys = JobKeys(job_id)
    JobDirectory(client, "sr").announce(job_id, "t")
    JobLog(server, keys, "t").submit({"name": "t", "spec": {"model": model}}, 1, [{"first": 0, "count": 1}])
    facts = {"status": "completed", "completed": 10, "completion_tokens": tokens, "started": 1000, "ended": 11_000}
    client.hset(keys.meta, mapping=facts)


def test_the_newest_finished_job_of_the_model_tells_its_speed(embedded: EmbeddedServer) -> None:
    finish(embedded, "job_1", "m", 5000)
    finish(embedded, "job_2", "m", 1000)
    finish(embedded, "job_3", "other", 9000)
    finish(embedded, "job_4", "m", 10)  # too short to tell
    assert last_job(embedded.reader(), "m") == LastJob("job_2", 100.0, 100.0)
    assert last_job(embedded.reader(), "unknown") is None


def test_a_job_before_tells_what_to_expect_and_the_limits_what_to_fear() -> None:
    told = LastJob("job_2", 32.0, 100.0).predict(COUNTS)
    assert (told["source"], told["expected_s"], told["at_most_s"]) == ("last job", 32.0, 64.0)
    assert LastJob("job_2", 500.0, 100.0).predict(COUNTS)["expected_s"] == 64.0


@pytest.mark.parametrize(
    ("most", "cost", "seconds"),
    [
        (50, StepCost(10.0, 0.0, 0.0), 1.28),  # 6400 tokens, 50 a step
        (100, StepCost(10.0, 0.0, 0.0), 0.74),  # 100 rows at once: 7400 tokens of 100 a step
        (50, StepCost(0.0, 1.0, 0.5), 6.9),  # by the token
    ],
)
def test_measured_steps_are_put_to_the_work(most: int, cost: StepCost, seconds: float) -> None:
    batched = 1000 if most == 50 else 100
    assert Measured(cost, most, batched, 1.0).predict(COUNTS)["at_most_s"] == pytest.approx(seconds, abs=0.06)
