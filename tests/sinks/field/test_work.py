"""Public reports about sharing work through Redis, each tried on the log. Numbers: the table in README.md."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.library import library_code
from streamrunner.sinks.reader import read_log, read_payloads

if TYPE_CHECKING:
    from desk import Desk

    from streamrunner.sinks.log import WorkerLease

pytestmark = pytest.mark.redis


def test_07_two_claimers_never_get_one_range(desk: Desk) -> None:
    """taskiq-redis #123: a lock beside XAUTOCLAIM was not atomic with it, and a task ran twice."""
    leases = [desk.join(name) for name in "abcd"]
    won: list[str] = []

    def race(lease: WorkerLease) -> None:
        reply = desk.another().claim(lease, [])
        if reply["s"] == "OK":
            won.append(reply["range"])

    threads = [threading.Thread(target=race, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == ["1-0", "2-0", "3-0"]


def test_08_a_lease_ends_by_itself_when_its_holder_was_killed(desk: Desk) -> None:
    """taskiq-redis #131, #107: a lock without a time to live outlived its killed holder for ever."""
    lease = desk.join()
    assert 0 < desk.client.pttl(desk.keys.lease("w")) <= 15_000
    desk.log.beat(lease)
    assert 0 < desk.client.pttl(desk.keys.lease("w")) <= 15_000


def test_09_a_dead_workers_ranges_all_go_to_the_next(desk: Desk) -> None:
    """taskiq-redis #130, ragflow #15806: nobody reclaimed what a dead worker had, or gave up at the first odd entry."""
    dead = desk.join("dead")
    taken = [desk.claim(dead).id, desk.claim(dead, "1-0").id]
    desk.expire(dead)
    heir = desk.join("heir")
    assert [desk.claim(heir).id, desk.claim(heir, "1-0").id] == taken


def test_10_long_work_is_not_given_to_others_while_its_worker_lives(desk: Desk) -> None:
    """kombu #337, celery #5935, mastra #23648: work longer than a visibility timeout ran twice. Here only the lease
    counts, however long an entry has been pending."""
    lease, other = desk.join("a"), desk.join("b")
    mine = desk.claim(lease)
    desk.client.xclaim(desk.keys.work, "workers", "a", 0, [mine.id], idle=10**9, justid=True)
    assert desk.claim(other).id != mine.id


def test_11_ranges_claimed_ahead_do_not_age(desk: Desk) -> None:
    """dapr #4599: entries fetched ahead aged in their buffer and were delivered to others as well."""
    lease = desk.join("a")
    ahead = [desk.claim(lease).id, desk.claim(lease, "1-0").id, desk.claim(lease, "1-0", "2-0").id]
    desk.client.xclaim(desk.keys.work, "workers", "a", 0, ahead, idle=10**9, justid=True)
    assert desk.log.claim(desk.join("b"), [])["s"] == "BUSY"


def test_12_at_the_moment_of_a_takeover_one_owner_writes(desk: Desk) -> None:
    """docket #245: when a timeout met the redelivery threshold, both the retry and the redelivery ran to their ends."""
    late, heir = desk.join("late"), None
    mine = desk.claim(late)
    desk.expire(late)
    heir = desk.join("heir")
    taken = desk.claim(heir)
    assert taken.id == mine.id
    assert desk.finish(late, 1, 0, mine)["s"] == "EXPIRED"
    back = desk.join("late")
    assert desk.finish(back, 1, 0, mine)["t"] == ["STALE"]
    assert isinstance(desk.finish(heir, 1, 0, taken)["t"][0], int)
    assert desk.ended_rows() == [0]


def test_15_results_are_read_by_all_and_taken_by_nobody(desk: Desk) -> None:
    """llm-d-batch-gateway #644: replicas popped each other's results from one list, and a batch hung at 33 of 64."""
    lease = desk.join()
    claimed = desk.claim(lease)
    desk.finish(lease, 1, 0, claimed)
    desk.finish(lease, 2, 1, claimed)
    for _ in range(2):
        ended = [one for one in read_log(desk.client, desk.keys) if one.type == "request.completed"]
        assert len(read_payloads(desk.client, desk.keys, ended)) == 2


def test_16_a_killed_workers_rows_are_recovered_when_its_lease_ends(desk: Desk) -> None:
    """procrastinate #307, arq #343, sidekiq #6829: after a kill jobs stood as "doing" for hours. Finished rows stay."""
    dead = desk.join("dead")
    claimed = desk.claim(dead)
    desk.finish(dead, 1, 0, claimed)
    desk.expire(dead)
    taken = desk.claim(desk.join("heir"))
    assert (taken.id, taken.done) == (claimed.id, "10")
    assert "worker.lost" in desk.types()


def test_17_a_lost_group_is_an_error_with_a_remedy_and_no_endless_loop(desk: Desk) -> None:
    """faststream #2611, opik #5525: Redis lost the consumer group, and workers asked for it for ever."""
    lease = desk.join()
    desk.client.xgroup_destroy(desk.keys.work, "workers")
    with pytest.raises(SinkError, match="runner fsck") as caught:
        desk.log.claim(lease, [])
    assert caught.value.code == "log_damaged"


def test_18_a_worker_that_comes_late_gets_all_the_work(desk: Desk) -> None:
    """faststream #2694, EggAI #269: a group created at `$` skipped what was there; one read from 0 spun in circles."""
    lease = desk.join()
    known: list[str] = []
    while (reply := desk.log.claim(lease, known))["s"] == "OK":
        known.append(reply["range"])
    assert known == ["1-0", "2-0", "3-0"]
    assert reply["s"] == "NONE"


def test_19_no_consumer_is_deleted_while_it_owns_ranges(desk: Desk) -> None:
    """redis #9745: XGROUP DELCONSUMER drops what the consumer had pending, for good."""
    lease = desk.join("a")
    mine = desk.claim(lease)
    desk.log.leave(lease, "SIGTERM")
    assert desk.consumers() == ["a"], "it owns a range that nobody has taken yet"
    heir = desk.join("b")
    assert desk.claim(heir).id == mine.id
    assert desk.consumers() == ["b"]
    assert library_code().count("DELCONSUMER") == 1


def test_20_a_hundred_restarts_leave_no_consumers_behind(desk: Desk) -> None:
    """hyperswitch #13811, vexa #660: every restart left a consumer, 38 million in the end."""
    for number in range(100):
        lease = desk.join(f"w{number}")
        desk.claim(lease)
        (desk.expire if number % 2 else lambda one: desk.log.leave(one, "SIGTERM"))(lease)
    last = desk.join("last")
    desk.claim(last)
    assert len(desk.consumers()) <= 2


def test_32_ownership_is_by_acquisition_and_not_by_name(desk: Desk) -> None:
    """aegra #547, lion-reader #917: under one name a stale heartbeat kept the new owner's lease, a stale release took
    it away, and a late result won."""
    old = desk.join("w")
    claimed = desk.claim(old)
    new = desk.join("w")
    assert desk.log.beat(old)["s"] == "FENCED"
    assert desk.log.leave(old, "SIGTERM")["s"] == "FENCED"
    assert desk.finish(old, 1, 0, claimed)["s"] == "FENCED"
    assert desk.log.beat(new)["s"] == "OK"


def test_59_asking_for_work_in_vain_registers_nobody_for_good(desk: Desk) -> None:
    """hyperswitch #13690: XREADGROUP registers its consumer even when there is nothing to read."""
    holder = desk.join("holder")
    for known in ([], ["1-0"], ["1-0", "2-0"]):
        desk.log.claim(holder, known)
    for number in range(5):
        lease = desk.join(f"idle{number}")
        assert desk.log.claim(lease, [])["s"] == "BUSY"
        desk.log.leave(lease, "SIGTERM")
    assert desk.consumers() == ["holder"]


def test_a_foreign_type_under_one_of_the_keys_is_no_endless_wait(desk: Desk) -> None:
    """What no waiting mends has to come out at once, as an error."""
    lease = desk.join()
    desk.client.delete(desk.keys.claims)
    desk.client.set(desk.keys.claims, "x")
    with pytest.raises((ResponseError, SinkError)):
        desk.log.claim(lease, [])
