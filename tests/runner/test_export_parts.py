"""Outputs in parts: Parquet, and everything on a remote file system."""

from __future__ import annotations

import csv
import io
import json
import uuid
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow.dataset
import pyarrow.parquet
import pytest

from streamrunner.runner.exporter import Exporter
from streamrunner.runner.outputs import open_output
from streamrunner.runner.spec import OutputSpec
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.outputs.parts import PartsFolder
from streamrunner.sinks.outputs.stores import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_ROWS = 7


@pytest.fixture
def job(log_job: Callable[[int], Any]) -> Any:
    return log_job(NUM_ROWS)


class Parts:
    """An output in parts of two rows, at a place that only this test has."""

    def __init__(self, job: Any, place: str, **options: Any) -> None:
        self.job, self.place = job, place
        self.output = OutputSpec(path=place, rows_per_part=2, **options)
        self.url = place if "://" in place else f"file://{job.folder / place}"
        self.fs, self.root = fsspec.core.url_to_fs(self.url)

    def exporter(self) -> Exporter:
        return Exporter(self.job.context, self.job.server, self.output)

    def export(self) -> None:
        exporter = self.exporter()
        exporter.start()
        exporter.finish()

    def export_nothing(self) -> None:
        """Leave an empty folder with its manifest."""
        open_output(self.job.context, self.output).close()

    def files(self) -> dict[str, bytes]:
        return {path.rpartition("/")[2]: self.fs.cat_file(path) for path in self.fs.ls(self.root, detail=False)}

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files()["_manifest.json"])
        return found

    def parts(self) -> list[list[str]]:
        """custom_ids, part by part, of the parts that the manifest names; there are no others."""
        files = self.files()
        named = [part["name"] for part in self.manifest()["parts"]]
        assert sorted(name for name in files if name.startswith("part-")) == named
        return [names_in(files[name], name) for name in named]


def names_in(content: bytes, name: str) -> list[str]:
    if name.endswith(".parquet"):
        found: list[str] = pyarrow.parquet.read_table(io.BytesIO(content)).column("custom_id").to_pylist()
        return found
    if name.endswith(".csv"):
        return [row["custom_id"] for row in csv.DictReader(io.StringIO(content.decode(), newline=""))]
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


@pytest.fixture(params=["table.parquet", "memory://{}/out.parquet", "memory://{}/out.jsonl", "memory://{}/out.csv"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param).format(uuid.uuid4().hex)


def test_parts_are_full_while_the_job_runs_and_complete_at_its_end(job: Any, place: str) -> None:
    parts = Parts(job, place)
    job.finish(4, 1, 2)
    parts.export()
    assert parts.parts() == [["c4", "c1"]]
    assert parts.manifest()["complete"] is False
    job.finish(0, 3)
    parts.export()
    assert parts.parts() == [["c4", "c1"], ["c2", "c0"]]
    job.cancel()
    parts.export()
    assert parts.parts() == [["c4", "c1"], ["c2", "c0"], ["c3"], ["c5", "row-6"]]
    assert parts.manifest()["complete"] is True


def test_parts_in_the_order_of_the_input_wait_for_all_their_rows(job: Any, place: str) -> None:
    parts = Parts(job, place, order="input")
    job.finish(1, 4, 2)
    parts.export()
    assert parts.parts() == []
    job.finish(0)
    parts.export()
    assert parts.parts() == [["c0", "c1"]]
    job.cancel()
    parts.export()
    assert parts.parts() == [["c0", "c1"], ["c2", "c3"], ["c4", "c5"], ["row-6"]]


def test_a_part_is_there_as_soon_as_it_is_full(job: Any, eventually: Any) -> None:
    parts = Parts(job, "table.parquet")
    running = parts.exporter()
    running.start()
    job.finish(0)
    job.finish(1)
    eventually(lambda: (job.folder / "table.parquet" / "part-00000.parquet").exists())
    running.finish()
    assert parts.parts() == [["c0", "c1"]]


def test_a_second_export_writes_nothing_again(job: Any, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(job, place)
    job.finish(0, 1, 2)
    job.cancel()
    parts.export()
    before = parts.files()
    monkeypatch.setattr(PartsFolder, "put", lambda *_: pytest.fail("a part was written again"))
    parts.export()
    assert parts.files() == before


@pytest.mark.parametrize("order", ["completion", "input"])
@pytest.mark.parametrize("spoil", ["delete", "cut", "manifest"])
def test_a_part_that_went_away_is_written_again_with_the_same_rows(
    job: Any, place: str, spoil: str, order: str
) -> None:
    parts = Parts(job, place, order=order)
    job.finish(0, 1, 2, 3, 4, 5)
    parts.export()
    before = parts.parts()
    assert len(before) == 3
    victim = f"{parts.root}/{'_manifest.json' if spoil == 'manifest' else parts.manifest()['parts'][1]['name']}"
    if spoil == "cut":
        parts.fs.pipe_file(victim, parts.fs.cat_file(victim)[:9])
    else:
        parts.fs.rm_file(victim)
    parts.export()
    assert parts.parts() == before


def test_a_kill_between_a_part_and_the_manifest_doubles_nothing(
    job: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(job, place)
    job.finish(0, 1, 2, 3)
    parts.export_nothing()
    with monkeypatch.context() as patch:
        patch.setattr(PartsFolder, "_save", _die)
        with pytest.raises(SinkError):
            parts.export()
    assert [name for name in parts.files() if name.startswith("part-")] == [f"part-00000{parts_suffix(place)}"]
    job.finish(4, 5)
    parts.export()
    assert parts.parts() == [["c0", "c1"], ["c2", "c3"], ["c4", "c5"]]


def parts_suffix(place: str) -> str:
    return f".{place.rpartition('.')[2]}"


def _die(_folder: PartsFolder) -> None:
    raise OSError(5, "killed here")


def test_results_and_failures_can_be_apart_in_parts_too(job: Any, place: str) -> None:
    job.finish(0, 1, 2)
    job.finish(3, failed=True)
    job.cancel()
    ok, errors = Parts(job, f"{place}.ok", rows="completed", type=parts_suffix(place)[1:]), Parts(
        job, f"{place}.errors", rows="failed", type=parts_suffix(place)[1:]
    )  # fmt: skip
    ok.export()
    errors.export()
    assert ok.parts() == [["c0", "c1"], ["c2"]]
    assert errors.parts() == [["c3"], ["c4", "c5"], ["row-6"]]


def test_an_output_without_any_rows_is_still_a_dataset(job: Any) -> None:
    job.cancel()
    Parts(job, "table.parquet", rows="completed").export()
    table = pyarrow.dataset.dataset(job.folder / "table.parquet").to_table()
    assert (table.num_rows, table.column_names[:2]) == (0, ["id", "custom_id"])


def test_a_dataset_of_results_has_typed_columns(job: Any) -> None:
    job.finish(0, 2)
    job.finish(1, failed=True)
    job.cancel()
    Parts(job, "table.parquet", order="input").export()
    table = pyarrow.dataset.dataset(job.folder / "table.parquet").to_table()
    assert table.num_rows == NUM_ROWS
    assert [str(table.schema.field(name).type) for name in ("row", "text", "prompt_tokens")] == [
        "int64", "string", "int64",
    ]  # fmt: skip
    first, second, *_, last = table.sort_by("row").to_pylist()
    assert (first["text"], first["finish_reason"], first["completion_tokens"]) == ("text of 0", "stop", 2)
    assert (second["status"], second["error_code"], second["text"]) == ("failed", "context_length_exceeded", None)
    assert (last["status"], last["error_code"]) == ("cancelled", "batch_cancelled")


def test_compressed_lines_are_parts_of_compressed_lines(job: Any) -> None:
    import gzip

    parts = Parts(job, f"memory://{uuid.uuid4().hex}/out.jsonl.gz")
    job.finish(0, 1)
    parts.export()
    content = gzip.decompress(parts.files()["part-00000.jsonl.gz"])
    assert names_in(content, "x.jsonl") == ["c0", "c1"]


def test_a_folder_with_other_things_in_it_is_refused(job: Any, tmp_path: Path) -> None:
    (tmp_path / "table.parquet").mkdir()
    (tmp_path / "table.parquet" / "notes.txt").write_text("mine")
    with pytest.raises(SinkError, match=r"notes\.txt") as caught:
        Parts(job, "table.parquet").export()
    assert caught.value.code == "output_exists"


def test_one_process_at_a_time_has_a_local_folder(job: Any, tmp_path: Path) -> None:
    held = LocalStore(tmp_path / "table.parquet")
    with pytest.raises(SinkError) as caught:
        Parts(job, "table.parquet").export()
    assert caught.value.code == "output_locked"
    held.close()
    Parts(job, "table.parquet").export()


def test_two_exporters_of_one_remote_output_write_every_row_once(job: Any) -> None:
    parts = Parts(job, f"memory://{uuid.uuid4().hex}/out.jsonl")
    exporters = [parts.exporter() for _ in range(2)]
    for one in exporters:
        one.start()
    job.finish(0, 1, 2)
    job.cancel()
    for one in exporters:
        one.finish()
    assert sorted(name for part in parts.parts() for name in part) == ["c0", "c1", "c2", "c3", "c4", "c5", "row-6"]


def test_a_url_that_nothing_can_open_is_told_at_once(job: Any) -> None:
    with pytest.raises(SinkError) as caught:
        Exporter(job.context, job.server, OutputSpec(path="nosuch://bucket/out.jsonl")).start()
    assert caught.value.code == "output_unwritable"


def test_a_writer_that_lags_behind_takes_nothing_from_one_that_is_ahead(job: Any) -> None:
    parts = Parts(job, f"memory://{uuid.uuid4().hex}/out.jsonl")
    job.finish(0, 1)
    parts.export()
    behind = open_output(job.context, parts.output)
    assert isinstance(behind, PartsFolder)
    job.finish(2, 3)
    parts.export()
    behind.settle(1, complete=False)
    assert parts.parts() == [["c0", "c1"], ["c2", "c3"]]
    behind.close()


def test_parts_of_an_earlier_job_are_gone_when_the_new_one_is_complete(job: Any) -> None:
    parts = Parts(job, "table.parquet")
    job.finish(0, 1)
    job.cancel()
    (job.folder / "table.parquet").mkdir()
    (job.folder / "table.parquet" / "part-00099.parquet").write_bytes(b"old")
    parts.export()
    assert parts.parts() == [["c0", "c1"], ["c2", "c3"], ["c4", "c5"], ["row-6"]]
