"""Jobs that other runners lost, doubled or left hanging when they were cancelled, killed and resumed: as users reported
it, in our words, and what happens here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    FieldJob = Any

RUNNER = Path(sys.executable).with_name("runner")
NUM_ROWS = 24
SAMPLING = {"max_tokens": 200, "seed": 7, "ignore_eos": True}
NARROW = {"max_num_seqs": 2}


def row(number: int, prompt: str = "the same words", **body: Any) -> bytes:
    body = {"prompt": prompt, **body}
    line = {"custom_id": f"n{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line).encode() + b"\n"


ROWS = [row(0, max_tokens=2), *(row(i) for i in range(1, NUM_ROWS))]


@pytest.fixture
def running(field: FieldJob) -> Iterator[subprocess.Popen[bytes]]:
    """A `runner submit` of rows of the same text: one has its result, others are half done."""
    process = start(field, ROWS)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def start(field: FieldJob, rows: list[bytes]) -> subprocess.Popen[bytes]:
    """Submit, and return once a row has its result: the first one is short."""
    field.write("rows.jsonl", b"".join(rows))
    field.write_job("rows.jsonl", sampling=SAMPLING, engine=NARROW)
    env = {**os.environ, "RUNNER_DATA_DIR": str(field.data_dir)}
    process = subprocess.Popen(
        [str(RUNNER), "submit", "job.yaml"], env=env, cwd=field.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not field.command("events", "last", "--json", "--type", "request.completed").stdout:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
    return process


def stop(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)
    process.communicate(timeout=20)


def resume(field: FieldJob, **sections: Any) -> subprocess.CompletedProcess[bytes]:
    """The same command again."""
    changed = {"sampling": SAMPLING, "engine": NARROW, **sections}
    done: subprocess.CompletedProcess[bytes] = field.run("submit", "rows.jsonl", **changed)
    return done


def outcomes(field: FieldJob) -> dict[str, str | None]:
    """custom_id → error code; each row has one line."""
    lines = field.results()
    found = {line["custom_id"]: line["error"] and line["error"]["code"] for line in lines}
    assert len(found) == len(lines)
    return found


def counts(field: FieldJob) -> dict[str, int]:
    shown: dict[str, int] = json.loads(field.command("status", "last", "--json").stdout)["request_counts"]
    return shown


def test_rows_in_flight_at_a_cancel_are_neither_lost_nor_failed(
    field: FieldJob, running: subprocess.Popen[bytes]
) -> None:
    """llm-d/llm-d-batch-gateway#221, #200: such rows were in neither file, and counted as failed."""
    assert [field.command("cancel", "last").returncode for _ in range(2)] == [0, 0], "twice is no error"
    running.communicate(timeout=20)
    assert running.returncode == 5
    found = outcomes(field)
    assert len(found) == NUM_ROWS
    assert found["n0"] is None
    assert set(found.values()) == {None, "batch_cancelled"}
    assert counts(field)["failed"] == 0


def test_a_cancelled_row_that_is_asked_for_again_at_once_is_not_cancelled_with_it(
    field: FieldJob, running: subprocess.Popen[bytes]
) -> None:
    """vllm-project/vllm#23697: the second request of the same id was aborted too, and its caller waited for ever."""
    assert field.command("cancel", "last", "--row", "23").returncode == 0
    assert field.command("retry", "last", "--rows", "23").returncode == 0
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert outcomes(field) == dict.fromkeys([f"n{i}" for i in range(NUM_ROWS)])


def test_a_cancel_that_meets_a_row_as_it_finishes_harms_nobody(
    field: FieldJob, running: subprocess.Popen[bytes]
) -> None:
    """vllm-project/vllm#25067, torch-spyre/sendnn-inference#36: a KeyError killed the engine."""
    said = [field.command("cancel", "last", "--row", str(number)) for number in range(6)]
    assert {one.returncode for one in said} <= {0, 4}, "4 where the job was over by then"
    assert "has its ending already" in said[0].stdout
    _, err = running.communicate(timeout=60)
    assert running.returncode in (0, 3), err
    found = counts(field)
    assert found["completed"] + found["cancelled"] == NUM_ROWS == len(outcomes(field))


def test_cancelling_what_is_done_is_told(field: FieldJob) -> None:
    """vllm-project/aibrix#2553 and BerriAI/litellm#36034: one refused a second cancel, one took any."""
    field.write("rows.jsonl", row(0, max_tokens=1))
    assert field.run("submit", "rows.jsonl").returncode == 0
    late = field.command("cancel", "last")
    assert (late.returncode, "has ended (completed)" in late.stderr) == (4, True)


def test_a_row_that_is_put_in_before_a_resume_shifts_no_results_and_a_failing_one_none_either(field: FieldJob) -> None:
    """NousResearch/hermes-agent#95322: rows were skipped, and files of other rows overwritten.
    argilla-io/distilabel#648, #587: after Ctrl-C a KeyError, or beside a failing row, rows that never ended.
    """
    rows = [ROWS[0], row(1, "x" * 400), *ROWS[2:]]
    process = start(field, rows)
    stop(process, signal.SIGINT)
    assert process.returncode == 75
    before = (field.folder / "out" / "results.jsonl").read_bytes()
    field.write("rows.jsonl", b"".join([rows[0], row(99), *rows[1:]]))
    refused = resume(field)
    assert refused.returncode == 4
    assert b"input" in refused.stderr
    assert (field.folder / "out" / "results.jsonl").read_bytes() == before
    field.write("rows.jsonl", b"".join(rows))
    assert resume(field).returncode == 3, "with the rows as they were it goes on"
    assert set(outcomes(field)) == {f"n{i}" for i in range(NUM_ROWS)}
    failed = [line["custom_id"] for line in field.results() if line["response"]["status_code"] != 200]
    assert failed == ["n1"]


class Resumed(NamedTuple):
    """A job that was killed, met with other settings, and resumed behind a torn line."""

    field: FieldJob
    refused: subprocess.CompletedProcess[bytes]
    done: subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="module")
def resumed(
    make_field: Callable[[Path, Path], FieldJob], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Resumed]:
    with tempfile.TemporaryDirectory(prefix="sr-", ignore_cleanup_errors=True) as data_dir:
        field = make_field(tmp_path_factory.mktemp("resumed"), Path(data_dir))
        stop(start(field, ROWS), signal.SIGKILL)
        output = field.folder / "out" / "results.jsonl"
        first_line = output.read_bytes().partition(b"\n")[0]
        with output.open("ab") as file:
            file.write(first_line[: len(first_line) // 2] or b'{"id":"batch_req_')
        refused = resume(field, sampling={**SAMPLING, "max_tokens": 20})
        yield Resumed(field, refused, resume(field, events={"progress_interval": "50ms"}))


def test_rows_of_the_same_text_are_different_rows_after_a_kill(resumed: Resumed) -> None:
    """NousResearch/hermes-agent#86523: after a kill every row with the text of a finished one counted as done."""
    assert resumed.done.returncode == 0, resumed.done.stderr
    assert outcomes(resumed.field) == dict.fromkeys([f"n{i}" for i in range(NUM_ROWS)])
    assert len({line["response"]["body"]["id"] for line in resumed.field.results()}) == NUM_ROWS


def test_a_torn_line_is_neither_glued_to_the_next_one_nor_taken_for_a_result(resumed: Resumed) -> None:
    """NousResearch/hermes-agent#112575, NVIDIA-AI-Blueprints/nemotron-voice-agent#120: the row behind it was lost."""
    assert len(resumed.field.results()) == NUM_ROWS, "each line is JSON, each row has one"


def test_a_resumed_job_runs_as_many_rows_at_once_as_a_fresh_one(resumed: Resumed) -> None:
    """bespokelabsai/curator#564: after a resume one row ran at a time, then none."""
    lines = resumed.field.command("events", "last", "--json", "--type", "progress").stdout
    events = [json.loads(line) for line in lines.splitlines()]
    second = [event["data"]["running"] for event in events if event["by"] == events[-1]["by"]]
    assert max(second) >= NARROW["max_num_seqs"]


def test_another_max_tokens_does_not_go_on_with_stale_rows(resumed: Resumed) -> None:
    """bespokelabsai/curator#408, #697: rows that were made under other settings came back as results."""
    assert (resumed.refused.returncode, b"sampling" in resumed.refused.stderr) == (4, True)


def test_a_job_whose_machine_is_gone_can_be_cancelled_and_says_so(
    field: FieldJob, running: subprocess.Popen[bytes], eventually: Callable[..., None]
) -> None:
    """llm-d/llm-d-batch-gateway#645: the job stayed in progress for ever, and a cancel stayed at cancelling."""
    stop(running, signal.SIGKILL)
    assert field.command("cancel", "last").stdout.strip().endswith("cancelled")
    eventually(lambda: json.loads(field.command("status", "last", "--json").stdout)["status"] == "cancelled")
    assert resume(field).returncode == 5
    assert Counter(outcomes(field).values())["batch_cancelled"] == counts(field)["cancelled"]
