from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from input_kit import scan, scan_path, spec_of

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.inputs import read_range, scan_input
from streamrunner.runner.job import JobContext
from streamrunner.runner.spec import JobSpec
from streamrunner.runner.spool import Spool, passing_data_dir
from streamrunner.sinks.keys import JobKeys

if TYPE_CHECKING:
    from pathlib import Path

CSV = b"prompt\none\ntwo\n"


def job_of(spec: JobSpec, base: Path, data_dir: Path) -> JobContext:
    return JobContext("job_a", JobKeys("job_a"), spec, 1, base, 0, data_dir)


def elsewhere(tmp_path: Path) -> Path:
    """Another machine's data dir; that of the submitter is out of its reach."""
    shutil.rmtree(tmp_path / "data")
    return tmp_path / "elsewhere"


def test_a_worker_elsewhere_makes_the_same_copy_of_the_same_input(tmp_path: Path) -> None:
    found = scan(tmp_path, "rows.csv", CSV)
    job = job_of(spec_of("rows.csv"), tmp_path, elsewhere(tmp_path))
    rows = read_range(found.ranges[0], job)
    assert [row.line for row in rows] == [2, 3]
    (tmp_path / "rows.csv").unlink()  # made once
    assert read_range(found.ranges[0], job) == rows


def test_rows_of_the_job_file_can_be_read_anywhere(tmp_path: Path) -> None:
    spec = JobSpec.model_validate({"name": "t", "model": "m", "requests": [{"prompt": "one"}]})
    found = scan_input(spec, tmp_path, tmp_path / "data")
    job = job_of(spec, tmp_path, elsewhere(tmp_path))
    assert [row.raw for row in read_range(found.ranges[0], job)] == [b'{"prompt":"one"}']


@pytest.mark.parametrize(
    ("change", "code"), [(b"", "input_missing"), (b"prompt\nother\n", "input_changed")], ids=["gone", "changed"]
)
def test_a_worker_that_can_make_no_copy_says_what_it_needs(tmp_path: Path, change: bytes, code: str) -> None:
    found = scan(tmp_path, "rows.csv", CSV)
    job = job_of(spec_of("rows.csv"), tmp_path, elsewhere(tmp_path))
    (tmp_path / "rows.csv").write_bytes(change)
    if not change:
        (tmp_path / "rows.csv").unlink()
    with pytest.raises(RunnerError, match="share the data dir") as caught:
        read_range(found.ranges[0], job)
    assert caught.value.code == code


def test_standard_input_is_not_asked_for_again(tmp_path: Path) -> None:
    found = scan(tmp_path, "rows.csv", CSV)
    job = job_of(spec_of("-"), tmp_path, elsewhere(tmp_path))
    with pytest.raises(RunnerError, match="came from standard input") as caught:
        read_range(found.ranges[0], job)
    assert caught.value.code == "input_missing"


def test_what_a_kill_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    spool = Spool(tmp_path)

    def chunks() -> Any:
        [part] = spool.folder.glob("*.part")
        os.utime(part, (0, 0))
        stale = spool.folder / "killed.part"
        stale.write_bytes(b"half a row")
        os.utime(stale, (0, 0))
        yield b"{}\n"
        Spool(tmp_path).keep([b"other\n"])
        assert not stale.exists()
        assert part.exists()

    copy = spool.keep(chunks())
    assert copy.is_new
    assert copy.path.read_bytes() == b"{}\n"
    assert not spool.keep([b"{}\n"]).is_new
    assert len(list(spool.folder.iterdir())) == 2


def test_a_look_leaves_no_copy(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(CSV)
    with passing_data_dir(tmp_path / "data") as folder:
        scan_path(tmp_path, "rows.csv")
        Spool(folder).keep([b"{}\n"])
    assert not folder.exists()
    stale = tmp_path / "data" / "spool" / "look-killed"
    stale.mkdir()
    os.utime(stale, (time.time() - 100_000,) * 2)
    scan_path(tmp_path, "rows.csv", input={"format": "text"})
    assert not stale.exists()


def test_a_data_dir_that_takes_no_copy_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"a file")
    with pytest.raises(RunnerError, match="cannot be copied to") as caught:
        scan(tmp_path, "rows.csv", CSV)
    assert caught.value.code == "spool_failed"
