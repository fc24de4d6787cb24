"""Deleting jobs: everything of an ended one at once, nothing of a running one, and never a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from raw_job import RawJob

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.purge import Purger, ended_jobs
from streamrunner.sinks.directory import JobDirectory

if TYPE_CHECKING:
    from streamrunner.sinks.server import LogServer


class Place:
    """A server with jobs on it, and who deletes them."""

    def __init__(self, server: LogServer) -> None:
        self.server = server
        self.raw: Any = server.client()
        self.directory = JobDirectory(self.raw, "sr")
        self.purger = Purger(server, self.directory, "sr")

    def job(self, key: str = "k", *, ended: bool = True) -> RawJob:
        job = RawJob(self.server)
        self.directory.reserve(key, job.id)
        self.directory.announce(job.id, "t")
        if ended:
            job.run_through()
        else:
            job.join()
            job.token(0, 0)
        return job

    def keys(self) -> set[str]:
        return {key.decode() for key in self.raw.keys("*")}


@pytest.fixture
def place(log_server: LogServer) -> Place:
    return Place(log_server)


def test_nothing_is_left_of_a_job_and_all_of_the_others(place: Place) -> None:
    other = place.job("other")
    before = place.keys()
    job = place.job("k")
    assert place.keys() > before
    assert place.purger.purge(job.id) > 5
    assert place.keys() == before
    assert [one.job_id for one in place.directory.pointers()] == [other.id]


def test_a_job_that_runs_is_refused_and_untouched(place: Place) -> None:
    job = place.job(ended=False)
    before = place.keys()
    with pytest.raises(RunnerError, match="runner cancel") as caught:
        place.purger.purge(job.id)
    assert caught.value.code == "job_running"
    assert place.keys() == before
    assert job.log.purge()["s"] == "RUNNING"
    assert place.keys() == before


def test_a_job_without_meta_is_not_taken_for_an_ended_one(place: Place) -> None:
    job = place.job(ended=False)
    place.raw.delete(job.keys.meta)
    with pytest.raises(RunnerError, match="fsck") as caught:
        place.purger.purge(job.id)
    assert caught.value.code == "job_damaged"
    assert place.raw.exists(job.keys.log)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_purge_that_was_killed_between_two_steps_goes_on(place: Place, steps: int) -> None:
    before = place.keys()
    job = place.job()
    for step in (place.directory.withdraw, lambda _: job.log.purge(), place.directory.retract)[:steps]:
        step(job.id)
    assert (place.directory.jobs() == []) == (steps >= 2)
    place.purger.purge(job.id)
    place.purger.purge(job.id)
    assert place.keys() - {"sr:jobs"} == before
    assert place.directory.pointers() == []


def test_a_submit_key_that_went_to_a_newer_job_stays_with_it(place: Place) -> None:
    old, new = place.job("k"), place.job("unused")
    place.directory.replace("k", old.id, new.id)
    place.purger.purge(old.id)
    assert place.directory.reserve("k", "job_next") == new.id


def test_only_jobs_that_ended_long_enough_ago_are_chosen(place: Place) -> None:
    ended, _running = place.job("a"), place.job("b", ended=False)
    assert [one.pointer.job_id for one in ended_jobs(place.directory, 0)] == [ended.id]
    assert ended_jobs(place.directory, 3600) == []
    late_s = int(place.directory.meta(ended.id)["ended"]) / 1000 + 3601
    assert [one.pointer.job_id for one in ended_jobs(place.directory, 3600, late_s)] == [ended.id]


def test_a_pointer_to_nothing_is_swept_once_no_submit_can_be_under_way(place: Place) -> None:
    place.directory.announce("job_gone", "t")
    place.purger.sweep()
    assert len(place.directory.pointers()) == 1
    [pointer] = place.directory.pointers()
    place.purger.sweep(pointer.time / 1000 + 3601)
    assert place.directory.pointers() == []


def test_the_command_asks_refuses_and_deletes(bench: Any) -> None:
    from streamrunner.sinks.embedded.server import EmbeddedServer

    with EmbeddedServer(bench.data_dir) as server:
        place = Place(server)
        running, ended = place.job("a", ended=False), place.job("b")
        for arguments in ([], ["t", "--all-ended"], [ended.id, "--older-than", "1h"], [ended.id]):
            assert bench.run("purge", *arguments).returncode == 2
        refused = bench.run("purge", running.id, "--yes")
        assert (refused.returncode, "[job_running]" in refused.stderr) == (4, True)
        assert "0 job(s) purged" in bench.run("purge", "--all-ended", "--older-than", "7d", "--yes").stdout
        assert bench.run("purge", ended.id, "--yes").returncode == 0
        assert bench.run("purge", ended.id, "--yes").returncode == 4
        assert [one.job_id for one in place.directory.jobs()] == [running.id]
