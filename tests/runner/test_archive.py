"""Jobs as files: nothing is lost on the way, and whoever reads jobs reads them there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from raw_job import RawJob, shown

from streamrunner.runner.archive import Archiver, find_archived
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.event_stream import Source, Watch, WatchOptions
from streamrunner.runner.fsck import examine
from streamrunner.runner.purge import Purger
from streamrunner.runner.result_feed import ResultFeed
from streamrunner.runner.view import View
from streamrunner.sinks.archive import Archives, JobFolder, decode_line, encode_line, write_stream
from streamrunner.sinks.archive_server import ArchiveServer
from streamrunner.sinks.directory import JobDirectory
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.log import Flush
from streamrunner.sinks.reader import read_log

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.server import LogServer


class Place:
    """A server, a data dir, and who moves jobs from one to the other."""

    def __init__(self, server: LogServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.raw: Any = server.client()
        self.directory = JobDirectory(self.raw, "sr")
        self.archives = Archives(folder)
        self.purger = Purger(server, self.directory, "sr")
        self.archiver = Archiver(self.raw, self.archives, self.purger, "sr")

    def job(self, *, ended: bool = True) -> RawJob:
        job = RawJob(self.server)
        self.directory.announce(job.id, "t")
        if ended:
            job.run_through()
        else:
            job.join()
        return job

    def archive(self, job: RawJob) -> JobFolder:
        return self.archiver.archive(self.directory.find(job.id))


@pytest.fixture
def place(log_server: LogServer, tmp_path: Path) -> Place:
    return Place(log_server, tmp_path)


def test_an_archived_job_has_left_its_server_and_reads_as_before(place: Place) -> None:
    job = place.job()
    log = list(read_log(job.raw, job.keys))
    feed = ResultFeed(job.raw, job.keys)
    results = list(feed.results.records([0, 1]))
    events = [one for one in shown(job.watch()) if not one.startswith("tokens")]
    folder = place.archive(job)
    assert place.raw.keys("sr:{*") == []

    server: Any = ArchiveServer(folder, "sr")
    client = server.client()
    assert list(read_log(client, job.keys)) == log
    assert list(ResultFeed(client, job.keys).results.records([0, 1])) == results
    watch = Watch(Source.of(server, job.id), View(), WatchOptions())
    # That the tokens stayed behind is said once.
    events.insert(-2, "gap")
    assert [one for page in watch.pages() for one in shown(page)] == events
    assert examine(client, job.keys).findings == []
    assert JobDirectory(client, "sr").meta(job.id)["status"] == "cancelled"


def test_the_files_are_json_lines_for_everybody(place: Place) -> None:
    import zstandard

    job = place.job()
    folder = place.archive(job)
    path = folder.path / "results.jsonl.zst"
    with path.open("rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read().splitlines()
    assert [json.loads(line)["p"]["choices"][0]["text"] for line in lines] == ["answer 0", "answer 1"]
    assert json.loads((folder.path / "manifest.json").read_text())["streams"]["results"]["entries"] == 2


def test_a_large_result_stands_in_the_archive_itself(place: Place) -> None:
    job = place.job(ended=False)
    lease, n = job._workers["w"]
    body = json.dumps({"choices": [{"index": 0, "text": "x" * 1_500_000}]}).encode()
    job.log.flush(lease, Flush(n, b"", "", (), [job._terminal(0)._replace(payload=body)]))
    job.cancel()
    folder = place.archive(job)
    [record] = ResultFeed(ArchiveServer(folder, "sr").client(), job.keys).results.records([0])
    assert record.body == body


def test_a_job_that_runs_stays_where_it_is(place: Place) -> None:
    job = place.job(ended=False)
    with pytest.raises(RunnerError) as caught:
        place.archive(job)
    assert caught.value.code == "job_running"
    assert place.archives.all() == []


def test_an_archive_that_was_cut_short_is_written_again_and_a_whole_one_is_not(place: Place) -> None:
    job = place.job()
    (place.folder / "jobs" / f".{job.id}.part").mkdir(parents=True)
    pointer = place.directory.find(job.id)
    purge, place.purger.purge = place.purger.purge, lambda _: 0  # type: ignore[method-assign,assignment]
    folder = place.archiver.archive(pointer)
    written = (folder.path / "log.jsonl.zst").stat().st_ino
    assert place.raw.exists(job.keys.log)
    place.purger.purge = purge  # type: ignore[method-assign]
    place.archiver.archive(pointer)
    assert not place.raw.exists(job.keys.log)
    assert (folder.path / "log.jsonl.zst").stat().st_ino == written
    assert [one.name for one in (place.folder / "jobs").iterdir()] == [job.id]


def test_a_damaged_archive_is_told_and_keeps_the_job_on_its_server(place: Place) -> None:
    job = place.job()
    pointer = place.directory.find(job.id)
    place.purger.purge = lambda _: 0  # type: ignore[method-assign,assignment]
    folder = place.archiver.archive(pointer)
    path = folder.path / "log.jsonl.zst"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SinkError) as caught:
        place.archiver.archive(pointer)
    assert caught.value.code == "archive_damaged"
    with pytest.raises(SinkError):
        list(read_log(ArchiveServer(folder, "sr").client(), job.keys))
    assert place.raw.exists(job.keys.log)


def test_a_job_is_found_on_the_server_first_and_last_is_the_latest(place: Place) -> None:
    first = place.job()
    place.archive(first)
    found = find_archived(place.folder, place.directory, "last")
    assert found is not None
    assert found.manifest.job == first.id
    second = place.job()
    assert find_archived(place.folder, place.directory, "last") is None
    assert find_archived(place.folder, place.directory, "t") is None
    assert find_archived(place.folder, place.directory, first.id) == found
    place.archive(second)
    assert find_archived(place.folder, place.directory, "nobody") is None


def test_ranges_of_a_long_stream_are_read_by_frames(tmp_path: Path) -> None:
    from streamrunner.sinks.archive import Manifest
    from streamrunner.sinks.keys import JobKeys

    entries = [(b"%d-0" % n, {b"v": b"1", b"p": b'{"n":%d}' % n}) for n in range(1, 3_501)]
    streams = {name: write_stream(tmp_path / f"{name}.jsonl.zst", entries) for name in ("log", "results", "ranges")}
    assert len(streams["log"].frames) == 4
    folder = JobFolder(tmp_path, Manifest(1, "job_x", "t", 0, "3500-0", {}, {}, {}, "", streams))
    client, key = ArchiveServer(folder, "sr").client(), JobKeys("job_x").res
    assert client.xrange(key) == entries
    assert client.xrange(key, "(1000-0", "1002-0") == entries[1000:1002]
    assert client.xrange(key, "999-0", count=3) == entries[998:1001]
    assert client.xrevrange(key, count=2) == entries[:-3:-1]
    assert client.xrevrange(key, "2000-0", "1999-0") == [entries[1999], entries[1998]]
    [[name, page]] = client.execute_command("XREAD", "COUNT", 5, "BLOCK", 10, "STREAMS", key.encode(), "3498-0")
    assert (name, page) == (key.encode(), entries[3498:])


@pytest.mark.parametrize("data", ['{"a":"\\n ü"}', '{\n"a": 1}', "{}"])
def test_a_line_is_the_entry(data: str) -> None:
    fields = {
        b"type": b"notice",
        b"v": b"1",
        b"time": b"1796104496880",
        b"by": "wörker".encode(),
        b"data": data.encode(),
    }
    line = encode_line((b"12-3", fields))
    assert b"\n" not in line
    raw_id, back = decode_line(line)
    assert raw_id == b"12-3"
    assert json.loads(back.pop(b"data")) == json.loads(fields.pop(b"data"))
    assert back == fields


def test_the_read_verbs_read_an_archive_and_the_others_say_that_it_is_one(bench: Any) -> None:
    from streamrunner.sinks.embedded.server import EmbeddedServer

    with EmbeddedServer(bench.data_dir) as server:
        place = Place(server, bench.data_dir)
        job = place.job()
        before = bench.run("events", "t", "--json", "--type", "request.*").stdout
        assert bench.run("archive", "t").returncode == 0
        assert bench.run("events", "t", "--json", "--type", "request.*").stdout == before
        assert json.loads(bench.run("status", job.id, "--json").stdout)["status"] == "cancelled"
        assert "(archived)" in bench.run("list").stdout
        assert len(bench.run("results", "t", "--rows", "completed").stdout.splitlines()) == 2
        assert bench.run("fsck", "last").stdout.splitlines()[-1] == "sound"
        for verb in (["cancel", "t"], ["archive", "t"], ["retry", "t"]):
            refused = bench.run(*verb)
            assert (refused.returncode, "[job_archived]" in refused.stderr) == (4, True), refused.stderr


def test_a_submit_of_an_archived_job_runs_nothing_and_completes_its_outputs(bench: Any, chat_row: Any) -> None:
    bench.write_rows([chat_row(number) for number in range(3)])
    bench.write_job()
    assert bench.submit().returncode == 0
    lines = bench.lines()
    assert bench.run("archive", "t").returncode == 0
    bench.output.unlink()
    again = bench.submit()
    assert (again.returncode, "is already done" in again.stdout) == (0, True), again.stderr
    assert bench.lines() == lines
    bench.write_rows([chat_row(number) for number in range(4)])
    assert bench.submit("--quiet").returncode == 0
    assert len(bench.lines()) == 4
