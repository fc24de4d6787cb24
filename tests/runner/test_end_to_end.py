"""`runner submit` as a user meets it: real processes, a real server, files."""

from __future__ import annotations

import fcntl
import json
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.sinks.events import validate_event

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Bench = Any  # tests/runner/conftest.py, which is no module to import

# Long enough that a signal meets rows in the middle of their output.
LONG = {"temperature": 0.8, "seed": 7, "max_tokens": 400, "ignore_eos": True}
# Two sequences at a time: some rows are done, some half done and some not begun when a signal comes.
NARROW = {"max_model_len": 512, "max_num_seqs": 2}


def wait_for_tokens(bench: Bench, process: subprocess.Popen[str], at_least: int = 1) -> None:
    """Return once the job that is running has written that many token events."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        shown = bench.run("events", "last", "--json", "--type", "tokens", "--type", "job.ended")
        types = [json.loads(line)["type"] for line in shown.stdout.split("\n") if line]
        if "job.ended" not in types and len(types) >= at_least:
            return
    raise AssertionError("no tokens within 60 s")


def assert_contract(events: list[dict[str, Any]]) -> None:
    """Every event fits the vocabulary, seqs are contiguous, every row ends once."""
    log = [event for event in events if "seq" in event]
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    for event in log:
        validate_event(event["type"], {name: value for name, value in event["data"].items() if name != "choices"})
    ended = [event["data"]["row"] for event in log if event["type"] in ("request.completed", "request.failed")]
    assert len(ended) == len(set(ended))


def test_a_job_runs_once_and_then_says_that_it_is_done(any_bench: Bench, chat_row: Callable[..., str]) -> None:
    bench = any_bench
    bench.write_rows([chat_row(i) for i in range(6)])
    bench.write_job()
    first = bench.submit()
    assert first.returncode == 0, first.stderr
    assert "6 completed, 0 failed" in first.stdout
    texts = bench.texts()
    assert sorted(texts) == [f"n{i}" for i in range(6)]
    assert all(text for choices in texts.values() for text in choices)
    assert_contract(bench.events())

    began = time.monotonic()
    again = bench.submit()
    assert (again.returncode, time.monotonic() - began < 5) == (0, True)
    assert "already done: 6 completed, 0 failed" in again.stdout

    fresh = bench.submit("--new")
    assert fresh.returncode == 0, fresh.stderr
    assert bench.texts() == texts


def test_rows_fail_alone_and_the_exit_code_says_so(bench: Bench, chat_row: Callable[..., str]) -> None:
    too_long = json.dumps({"custom_id": "long", "prompt": "x" * 2000})
    plain = json.dumps({"custom_id": "plain", "prompt": "Hello"})
    bench.write_rows([plain, "{not json", too_long, json.dumps({"custom_id": "two", "prompt": "Hi", "n": 2})])
    bench.write_job()
    done = bench.submit()
    assert done.returncode == 3, done.stderr
    assert "2 completed, 2 failed" in done.stdout
    by_id = {line["custom_id"]: line for line in bench.lines()}
    assert len(by_id) == 4
    error = by_id["long"]["response"]["body"]["error"]
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert len(by_id["two"]["response"]["body"]["choices"]) == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("any_bench", "number"),
    [
        ("embedded", signal.SIGKILL),
        ("embedded", signal.SIGTERM),
        ("embedded", signal.SIGINT),
        ("debian", signal.SIGKILL),
    ],
    indirect=["any_bench"],
)
def test_a_stopped_job_goes_on_with_the_same_command(
    any_bench: Bench, chat_row: Callable[..., str], number: signal.Signals
) -> None:
    bench = any_bench
    bench.write_rows([chat_row(i, **({"n": 2} if i % 2 else {})) for i in range(8)])
    bench.write_job(sampling=LONG, engine=NARROW)
    assert bench.submit().returncode == 0
    undisturbed = bench.texts()

    process = bench.start("submit", "job.yaml", "--new")
    wait_for_tokens(bench, process, at_least=20)
    process.send_signal(number)
    process.wait(timeout=12)
    if number is not signal.SIGKILL:
        assert process.returncode == 75
    resumed = bench.submit()
    assert resumed.returncode == 0, resumed.stderr
    assert bench.texts() == undisturbed
    events = bench.events()
    assert_contract(events)
    claims = [event["data"]["claim"] for event in events if event["type"] == "range.claimed"]
    assert len(claims) == 2


def test_a_second_submit_attaches_and_takes_over(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(i) for i in range(8)])
    bench.write_job(sampling=LONG, engine=NARROW)
    first = bench.start("submit", "job.yaml")
    wait_for_tokens(bench, first)
    second = bench.start("submit", "job.yaml")
    assert second.stderr is not None
    attached = [second.stderr.readline() for _ in range(2)]
    assert any("attached" in line for line in attached), attached
    first.kill()
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert "8 completed, 0 failed" in out
    assert len(bench.lines()) == 8


def test_a_changed_input_of_an_unfinished_job_is_refused_by_name(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(i) for i in range(8)])
    bench.write_job(sampling=LONG, engine=NARROW)
    process = bench.start("submit", "job.yaml")
    wait_for_tokens(bench, process)
    process.kill()
    process.wait()
    bench.write_rows([chat_row(i) for i in range(7)] + [chat_row(99)])
    refused = bench.submit()
    assert refused.returncode == 4
    assert "input" in refused.stderr
    assert "job_changed" in refused.stderr


def test_cancel_keeps_what_is_finished_and_accounts_for_the_rest(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(0, max_tokens=1), *(chat_row(i) for i in range(1, 8))])
    bench.write_job(sampling=LONG, engine=NARROW)
    process = bench.start("submit", "job.yaml")
    wait_for_tokens(bench, process, at_least=3)
    cancelled = bench.run("cancel", "last")
    assert cancelled.returncode == 0, cancelled.stderr
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 5
    assert "1 completed, 0 failed, 7 cancelled" in out
    lines = bench.lines()
    assert len(lines) == 8
    assert sum(1 for line in lines if line["error"] and line["error"]["code"] == "batch_cancelled") == 7
    again = bench.run("cancel", "last")
    assert again.returncode == 0
    assert bench.submit().returncode == 5


def test_a_paused_job_exits_75_and_goes_on(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(i) for i in range(4)])
    bench.write_job(sampling=LONG, engine=NARROW)
    process = bench.start("submit", "job.yaml")
    wait_for_tokens(bench, process)
    assert bench.run("pause", "last").returncode == 0
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 75
    assert "paused" in out
    status = json.loads(bench.run("status", "last", "--json").stdout)
    assert status["paused"]
    assert bench.submit().returncode == 0


def test_a_job_without_a_worker_is_cancelled_on_the_spot(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(i) for i in range(4)])
    bench.write_job(sampling=LONG, engine=NARROW)
    process = bench.start("submit", "job.yaml")
    wait_for_tokens(bench, process)
    process.terminate()
    assert process.wait(timeout=12) == 75
    assert "cancelled" in bench.run("cancel", "t").stdout
    assert json.loads(bench.run("status", "t", "--json").stdout)["status"] == "cancelled"


def test_read_verbs_tell_the_same_story(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(i) for i in range(5)])
    bench.write_job()
    assert bench.submit().returncode == 0
    status = json.loads(bench.run("status", "--json").stdout)
    assert status["request_counts"] == {"total": 5, "completed": 5, "failed": 0, "cancelled": 0, "expired": 0}
    [listed] = [json.loads(line) for line in bench.run("list", "--json").stdout.strip().split("\n")]
    assert listed["id"] == status["id"]
    printed = bench.run("results", "last").stdout.strip().split("\n")
    assert sorted(printed) == sorted(bench.output.read_text("utf-8").strip().split("\n"))
    assert "5 completed" in bench.run("watch", "last").stdout
    bench.output.unlink()
    assert bench.submit().returncode == 0
    assert len(bench.lines()) == 5


def test_events_go_on_from_any_cursor_and_token_texts_add_up(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(i) for i in range(3)])
    bench.write_job()
    assert bench.submit().returncode == 0
    events = bench.events()
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "tokens":
            for delta in event["data"]["deltas"]:
                texts[delta["row"]] = texts.get(delta["row"], "") + delta["text"]
    final = bench.texts()
    assert {f"n{row}": [text] for row, text in texts.items()} == final
    middle = events[len(events) // 2]
    rest = bench.run("events", "last", "--json", "--since", middle["cursor"]).stdout.strip().split("\n")
    assert [json.loads(line) for line in rest] == events[len(events) // 2 + 1 :]


def test_no_server_at_the_url_is_said_quickly(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(0)])
    bench.write_job()
    bench.redis_url = "redis://user:secret@127.0.0.1:1/0"
    began = time.monotonic()
    failed = bench.submit()
    assert (failed.returncode, time.monotonic() - began < 8) == (69, True)
    assert "127.0.0.1:1" in failed.stderr
    assert "secret" not in failed.stderr + failed.stdout
    assert "Traceback" not in failed.stderr


def test_a_consumer_that_stops_reading_does_not_hold_up_the_job(bench: Bench, chat_row: Callable[..., str]) -> None:
    """A socket with a full buffer: it asks for the whole log a thousand times over and never takes an answer."""
    bench.write_rows([chat_row(i) for i in range(8)])
    bench.write_job(sampling=LONG, engine=NARROW)
    process = bench.start("submit", "job.yaml")
    wait_for_tokens(bench, process, at_least=5)
    job = json.loads(bench.run("status", "--json").stdout)["id"]
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.connect(str(bench.data_dir / "server" / "server.sock"))
        stuck.setblocking(False)
        for _ in range(1000):
            try:
                stuck.send(f"XRANGE sr:{{{job}}}:log - +\r\n".encode())
            except BlockingIOError:
                break
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "8 completed" in out


@pytest.mark.model
def test_the_quickstart_answers_with_the_real_model(bench: Bench, smollm2: Path) -> None:
    """`make demo` without its installation: 24 rows, every one with text, a second time at once and without a model."""
    bench.data_dir.mkdir(parents=True, exist_ok=True)
    (bench.data_dir / "cache").symlink_to(smollm2.parents[1])
    bench.use_example("quickstart")
    done = bench.submit()
    assert done.returncode == 0, done.stderr
    assert "24 completed, 0 failed" in done.stdout
    texts = bench.texts()
    assert len(texts) == 24
    assert "Paris" in texts["fact-capital-france"][0]
    assert all(any(char.isalpha() for char in text) for choices in texts.values() for text in choices)
    again = bench.submit()
    assert "already done: 24 completed" in again.stdout
    assert "loading" not in again.stderr


def test_an_output_that_another_runner_is_about_to_leave_is_waited_for(
    bench: Bench, chat_row: Callable[..., str]
) -> None:
    # Two runners that see the same death both go for the outputs; the second used to give up with exit code 4.
    bench.write_rows([chat_row(i) for i in range(3)])
    bench.write_job(model="synthetic?step_ms=1", engine={})
    bench.output.parent.mkdir()
    with bench.output.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        submit = bench.start("submit", "job.yaml")
        time.sleep(2.0)
        assert submit.poll() is None
    out, error = submit.communicate(timeout=60)
    assert submit.returncode == 0, error
    assert "3 completed, 0 failed" in out
    assert len(bench.lines()) == 3


def test_runners_that_start_together_do_the_job_once(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(i) for i in range(30)])
    bench.write_job(model="synthetic?step_ms=2", engine={})
    runners = [bench.start("submit", "job.yaml") for _ in range(3)]
    ends = [one.communicate(timeout=60) for one in runners]
    assert [one.returncode for one in runners] == [0, 0, 0], ends
    assert sorted(line["custom_id"] for line in bench.lines()) == sorted(f"n{i}" for i in range(30))
    assert_contract(bench.events())
