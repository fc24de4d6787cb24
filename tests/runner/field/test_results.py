"""What users of other runners reported about results, tried here with small jobs."""

from __future__ import annotations

import csv
import gzip
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest
from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion
from openai.types.shared import ErrorObject

from streamrunner.runner.exports import Exports
from streamrunner.runner.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    Bench = Any  # tests/runner/conftest.py, which is no module to import

OUTPUTS: list[dict[str, Any]] = [
    {"path": "all.jsonl"},
    {"path": "ordered.jsonl", "order": "input"},
    {"path": "ok.jsonl.gz", "rows": "completed"},
    {"path": "errors.csv", "rows": "failed"},
    {"path": "dataset.parquet", "rows_per_part": 100},
]


def with_outputs(job: Any, outputs: list[dict[str, Any]]) -> Exports:
    spec = {"name": "t", "model": "m", "input": {"path": "rows.jsonl"}, "outputs": outputs}
    return Exports(replace(job.context, spec=JobSpec.model_validate(spec)), job.server)


def export(job: Any, *outputs: dict[str, Any]) -> None:
    exports = with_outputs(job, list(outputs))
    exports.start()
    exports.finish()


def lines(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).split(b"\n") if line]


def ids(path: Path) -> list[str]:
    return [line["custom_id"] for line in lines(path)]


def test_results_in_another_order_say_whose_they_are_and_input_order_can_be_had(
    log_job: Callable[[int], Any], tmp_path: Path
) -> None:
    """Outputs came in another order than the prompts, without an id to join them by."""
    job = log_job(6)
    for row in (4, 0, 3, 1, 2):
        job.finish(row, text="text of {}" + "." * 50 * row)
    export(job, {"path": "a.jsonl"}, {"path": "b.jsonl", "order": "input"})
    assert ids(tmp_path / "a.jsonl") == ["c4", "c0", "c3", "c1", "c2"]
    assert ids(tmp_path / "b.jsonl") == ["c0", "c1", "c2", "c3", "c4"]
    for line in lines(tmp_path / "a.jsonl"):
        assert line["response"]["body"]["choices"][0]["text"].startswith(f"text of {line['custom_id'][1:]}")


def test_every_row_has_one_result_also_where_some_cannot_run(bench: Bench, chat_row: Callable[..., str]) -> None:
    """Two prompts gave three outputs; one prompt that was too long ended the run."""
    bench.write_rows([chat_row(0, max_tokens=2), chat_row(1, max_tokens=2), "{broken", chat_row(3, temperature=-1)])
    bench.write_job(outputs=[{"path": "ok.jsonl", "rows": "completed"}, {"path": "errors.jsonl", "rows": "failed"}])
    assert bench.submit().returncode == 3
    assert sorted(ids(bench.folder / "ok.jsonl")) == ["n0", "n1"]
    errors = {
        line["custom_id"]: line["response"]["body"]["error"]["code"] for line in lines(bench.folder / "errors.jsonl")
    }
    assert errors == {"row-2": "invalid_json_line", "n3": "invalid_params"}


def test_a_job_of_which_every_row_fails_does_not_look_fine(log_job: Callable[[int], Any], tmp_path: Path) -> None:
    """All rows failed, the job was completed, and there was no file to see it in."""
    job = log_job(3)
    job.finish(0, 1, 2, failed=True)
    job.log.end("completed")
    export(job, {"path": "ok.jsonl", "rows": "completed"}, {"path": "errors.jsonl", "rows": "failed"})
    assert (tmp_path / "ok.jsonl").read_bytes() == b""
    assert len(ids(tmp_path / "errors.jsonl")) == 3


def test_rows_in_flight_at_a_cancel_are_in_the_error_file_and_finished_ones_stay(
    log_job: Callable[[int], Any], tmp_path: Path
) -> None:
    """Rows that ran when the batch was cancelled were in neither file, and counted as failed."""
    job = log_job(10)
    job.finish(7, 2)
    job.cancel()
    export(job, {"path": "ok.jsonl", "rows": "completed"}, {"path": "errors.jsonl", "rows": "failed"})
    assert ids(tmp_path / "ok.jsonl") == ["c7", "c2"]
    open_rows = lines(tmp_path / "errors.jsonl")
    assert len(open_rows) == 8
    assert {line["error"]["code"] for line in open_rows} == {"batch_cancelled"}


def test_the_same_prompt_three_times_is_three_rows_after_a_kill(log_job: Callable[[int], Any], tmp_path: Path) -> None:
    """A resume took all rows of one text for done once one of them was."""
    job = log_job(4)  # all its rows have one prompt
    job.finish(1)
    export(job, {"path": "a.jsonl"})
    job.finish(0, 2)
    export(job, {"path": "a.jsonl"})
    assert ids(tmp_path / "a.jsonl") == ["c1", "c0", "c2"]


def test_a_line_torn_by_a_kill_is_neither_lost_nor_glued_nor_counted(
    log_job: Callable[[int], Any], tmp_path: Path
) -> None:
    """The next row was glued to a torn line, or the torn line was counted as done."""
    job = log_job(4)
    job.finish(0, 1)
    export(job, {"path": "a.jsonl"})
    whole = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(whole[:-20])
    job.finish(2)
    export(job, {"path": "a.jsonl"})
    assert (tmp_path / "a.jsonl").read_bytes().startswith(whole)
    assert ids(tmp_path / "a.jsonl") == ["c0", "c1", "c2"]


def test_finished_rows_are_in_the_file_long_before_the_end(
    log_job: Callable[[int], Any], tmp_path: Path, eventually: Any
) -> None:
    """All responses were held back to the end, so an interrupted run left no output at all."""
    job = log_job(6)
    exports = with_outputs(job, [{"path": "a.jsonl"}])
    exports.start()
    for row in range(3):
        job.finish(row)
        eventually(lambda row=row: ids(tmp_path / "a.jsonl") == [f"c{one}" for one in range(row + 1)])
    exports.finish()


def test_two_readers_of_one_job_get_all_of_it_and_end_with_it(log_job: Callable[[int], Any], data_dir: Path) -> None:
    """Two readers took results from each other, and an iterator never ended."""
    job = log_job(5)
    job.finish(0)
    runner = Path(sys.executable).with_name("runner")
    command = [str(runner), "results", "last", "--follow", "--data-dir", str(data_dir)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    job.finish(2, 1)
    job.cancel()
    for reader in readers:
        out, _ = reader.communicate(timeout=30)
        assert [json.loads(line)["custom_id"] for line in out.splitlines()] == ["c0", "c2", "c1", "c3", "row-4"]
        assert reader.returncode == 0


def test_a_second_run_of_a_finished_job_changes_nothing(bench: Bench, chat_row: Callable[..., str]) -> None:
    """A second call on one manager lost results, or raised a KeyError."""
    bench.write_rows([chat_row(number, max_tokens=2) for number in range(3)])
    bench.write_job()
    assert bench.submit().returncode == 0
    before = bench.output.read_bytes()
    assert bench.submit().returncode == 0
    assert bench.output.read_bytes() == before


def test_the_input_is_never_written_over(bench: Bench, chat_row: Callable[..., str]) -> None:
    """Where the output had the path of the input, the input was cut to nothing."""
    bench.write_rows([chat_row(0)])
    before = (bench.folder / "rows.jsonl").read_bytes()
    bench.write_job(outputs=[{"path": "./rows.jsonl"}])
    assert bench.submit().returncode == 4
    assert (bench.folder / "rows.jsonl").read_bytes() == before


def test_openais_types_parse_every_line_of_chats_with_log_probabilities(
    bench: Bench, chat_row: Callable[..., str]
) -> None:
    """Log probabilities of minus infinity broke the JSON, and the row was lost."""
    rows = [chat_row(0), chat_row(1, logprobs=True, top_logprobs=5, temperature=0), chat_row(2, n=2), "{broken"]
    rows.append(chat_row(4, logprobs=True, top_logprobs=20, logit_bias={"70": -100}, max_tokens=3))
    bench.write_rows(rows)
    bench.write_job()
    assert bench.submit().returncode == 3
    for line in bench.lines():
        body = line["response"]["body"]
        if line["response"]["status_code"] != 200:
            assert ErrorObject.model_validate(body["error"], strict=True).code == "invalid_json_line"
            continue
        parsed = ChatCompletion.model_validate(body, strict=True)
        assert {(one.message.refusal, one.message.tool_calls) for one in parsed.choices} == {(None, None)}
        check_usage(parsed.usage)
    by_name = {line["custom_id"]: line["response"]["body"] for line in bench.lines()}
    assert len(by_name["n2"]["choices"]) == 2
    scored = by_name["n4"]["choices"][0]["logprobs"]["content"]
    assert all(len(token["top_logprobs"]) == 20 for token in scored)


def test_openais_types_parse_every_line_of_completions(bench: Bench) -> None:
    prompts: list[dict[str, Any]] = [{"prompt": "One"}, {"prompt": "Two", "logprobs": 3, "max_tokens": 4}]
    bench.write_rows([
        json.dumps({"custom_id": f"p{i}", "method": "POST", "url": "/v1/completions", "body": body})
        for i, body in enumerate(prompts)
    ])  # fmt: skip
    bench.write_job()
    assert bench.submit().returncode == 0, bench.submit().stderr
    for line in bench.lines():
        check_usage(Completion.model_validate(line["response"]["body"], strict=True).usage)


def check_usage(usage: CompletionUsage | None) -> None:
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert 0 <= (usage.prompt_tokens_details.cached_tokens or 0) <= usage.prompt_tokens


def test_prefixes_that_rows_share_are_told_as_cached_tokens(bench: Bench) -> None:
    shared = "The quick brown fox jumps over the lazy dog and runs away. " * 3
    rows = [{"prompt": shared + str(number), "max_tokens": 4} for number in range(3)]
    bench.write_rows([json.dumps(row) for row in rows])
    bench.write_job(
        engine={"max_model_len": 512, "max_num_seqs": 1}, outputs=[{"path": "out/results.jsonl", "order": "input"}]
    )
    assert bench.submit().returncode == 0
    cached = [line["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] for line in bench.lines()]
    assert cached[0] == 0
    assert min(cached[1:]) > 100


_EXPORT = """
import sys
from pathlib import Path
from streamrunner.runner.exports import Exports
from streamrunner.runner.submission import find_job
from streamrunner.sinks.embedded.server import EmbeddedServer

with EmbeddedServer(Path(sys.argv[1])) as server:
    exports = Exports(find_job(server.client(), "job_log"), server)
    exports.start()
    print("writing", flush=True)
    exports.finish()
"""


def test_every_output_has_every_row_once_after_kills_at_any_moment(
    log_job: Callable[..., Any], data_dir: Path, tmp_path: Path
) -> None:
    """Killed exports left half lines, half files, or rows twice."""
    job = log_job(1500, outputs=OUTPUTS)
    numbers = list(range(1499))
    random.Random(7).shuffle(numbers)
    for first in range(0, 1400, 100):
        job.finish(*numbers[first : first + 100], failed=first % 300 == 0, text="x" * 400)
    job.cancel()
    command = [sys.executable, "-c", _EXPORT, str(data_dir)]
    pauses = random.Random(11)
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pauses.uniform(0.0, 0.08))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    check_outputs(tmp_path, numbers[:1400])


def check_outputs(folder: Path, ended: list[int]) -> None:
    everything = [f"c{row}" for row in range(1499)] + ["row-1499"]
    failed = {f"c{row}" for place, row in enumerate(ended) if place // 100 % 3 == 0}
    ok = {f"c{row}" for row in ended} - failed
    assert ids(folder / "ordered.jsonl") == everything
    assert sorted(ids(folder / "all.jsonl")) == sorted(everything)
    assert sorted(ids(folder / "ok.jsonl.gz")) == sorted(ok)
    with (folder / "errors.csv").open(newline="") as file:
        assert sorted(row["custom_id"] for row in csv.DictReader(file, strict=True)) == sorted(set(everything) - ok)
    table = pyarrow.dataset.dataset(folder / "dataset.parquet").to_table()
    assert sorted(table.column("custom_id").to_pylist()) == sorted(everything)


@pytest.mark.parametrize("text", ["\u2028\u2029\x85", "\ud83d\ude00", "a\x00b", 'quote " comma , and \r\n'])
def test_text_of_any_kind_stays_one_line_and_comes_back_whole(
    log_job: Callable[[int], Any], tmp_path: Path, text: str
) -> None:
    """Line separators inside a text cut lines in two, and half characters ended the writer."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    job = log_job(3)
    job.finish(0, text=text)
    export(job, {"path": "a.jsonl"}, {"path": "a.csv"})
    [line] = lines(tmp_path / "a.jsonl")
    assert line["response"]["body"]["choices"][0]["text"] == text
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        assert [row["text"] for row in csv.DictReader(file, strict=True)] == [text]
