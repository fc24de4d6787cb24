"""Every code of docs/exit-codes.md, by the real command. Scripts rely on codes; what is said beside them may change."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Bench = Any  # tests/runner/conftest.py, which is no module to import

LONG = {"temperature": 0.8, "seed": 7, "max_tokens": 250, "ignore_eos": True}
# A Python that breaks behind the command's back.
BROKEN = "import json\ndef dumps(*_, **__): raise MemoryError('no memory left')\njson.dumps = dumps\n"


@pytest.fixture
def small(bench: Bench, chat_row: Callable[..., str]) -> Bench:
    bench.write_rows([chat_row(0, max_tokens=2)])
    bench.write_job()
    return bench


def test_codes_0_and_3_say_whether_every_row_has_a_result(small: Bench, chat_row: Callable[..., str]) -> None:
    assert small.submit().returncode == 0
    assert small.submit().returncode == 0, "a finished job says again how it ended"
    small.write_rows([chat_row(0, max_tokens=2), "{oops"])
    assert small.submit("--new").returncode == 3
    assert small.submit().returncode == 3


def test_code_1_is_a_bug_of_ours_and_shows_no_traceback(small: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert small.submit().returncode == 0
    (small.folder / "site").mkdir()
    (small.folder / "site" / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(small.folder / "site"))
    failed = small.run("status", "last", "--json")
    assert failed.returncode == 1
    assert "[internal]" in failed.stderr
    assert "Traceback" not in failed.stderr
    monkeypatch.setenv("RUNNER_TRACEBACK", "1")
    assert "Traceback" in small.run("status", "last", "--json").stderr


@pytest.mark.parametrize("arguments", [("nosuch",), ("submit",), ("status", "--nosuch"), ("retry", "x", "--rows", "a")])
def test_code_2_is_a_command_that_cannot_be_meant(bench: Bench, arguments: tuple[str, ...]) -> None:
    failed = bench.run(*arguments)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr


def test_code_4_is_a_job_or_an_input_that_cannot_run(small: Bench) -> None:
    assert small.run("submit", "nosuch.yaml").returncode == 4
    assert small.run("status", "nosuch").returncode == 4
    small.write_job(input={"path": "nosuch.jsonl"})
    assert small.submit().returncode == 4
    small.write_job(sampling={"temperature": -1})
    assert small.submit().returncode == 4


def test_codes_75_and_5_are_a_stopped_and_a_cancelled_job(small: Bench, chat_row: Callable[..., str]) -> None:
    small.write_rows([chat_row(i) for i in range(8)])
    small.write_job(sampling=LONG, engine={"max_model_len": 512, "max_num_seqs": 2})
    process = small.start("submit", "job.yaml")
    while not small.run("events", "last", "--type", "job.started").stdout:
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 75
    assert small.run("cancel", "last").returncode == 0
    assert small.submit().returncode == 5


@pytest.mark.parametrize(
    ("limits", "ending"), [({"deadline": "1ms"}, "expired"), ({"max_output_tokens": 1}, "cancelled")]
)
def test_code_6_is_a_job_that_reached_a_limit(
    small: Bench, chat_row: Callable[..., str], limits: dict[str, Any], ending: str
) -> None:
    small.write_rows([chat_row(i) for i in range(4)])
    small.write_job(sampling=LONG, limits=limits)
    ended = small.submit("--json")
    assert ended.returncode == 6, ended.stderr
    assert json.loads(ended.stdout)["status"] == ending
    assert small.submit().returncode == 6


def test_code_69_is_a_log_that_cannot_be_reached(bench: Bench) -> None:
    bench.redis_url = "redis://127.0.0.1:1/0"
    assert bench.run("status", "last").returncode == 69
