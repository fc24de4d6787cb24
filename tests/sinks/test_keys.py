"""Key names are a public contract: other programs read them."""

from __future__ import annotations

import pytest

from streamrunner.sinks.keys import JobKeys, jobs_key, submit_key


def test_the_keys_of_a_job_are_the_documented_ones() -> None:
    keys = JobKeys("job_01J")
    assert (keys.log, keys.res, keys.work) == ("sr:{job_01J}:log", "sr:{job_01J}:res", "sr:{job_01J}:work")
    assert (keys.claims, keys.done, keys.meta) == ("sr:{job_01J}:claims", "sr:{job_01J}:done", "sr:{job_01J}:meta")
    assert keys.lease("host-1a2b3c4d") == "sr:{job_01J}:lease:host-1a2b3c4d"
    assert keys.steps("host-1a2b3c4d") == "sr:{job_01J}:steps:host-1a2b3c4d"


def test_the_prefix_replaces_the_first_part_everywhere() -> None:
    assert JobKeys("job_01J", prefix="team:a").log == "team:a:{job_01J}:log"
    assert jobs_key("team:a") == "team:a:jobs"
    assert submit_key("team:a", "4f0c") == "team:a:submit:4f0c"
    assert jobs_key() == "sr:jobs"


def test_all_keys_of_a_job_share_one_cluster_slot() -> None:
    keys = JobKeys("job_01J")
    every = [keys.log, keys.res, keys.work, keys.claims, keys.done, keys.meta, keys.lease("w"), keys.steps("w")]
    assert {key[key.index("{") + 1 : key.index("}")] for key in every} == {"job_01J"}
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("bad", ["", "a b", "a{b", "a}b", "a*", "a\n", "ä"])
def test_what_would_break_a_key_or_an_acl_pattern_is_refused(bad: str) -> None:
    for make in (
        lambda: JobKeys(bad),
        lambda: JobKeys("job_01J", prefix=bad),
        lambda: jobs_key(bad),
        lambda: JobKeys("job_01J").lease(bad),
        lambda: JobKeys("job_01J").steps(bad),
    ):
        with pytest.raises(ValueError, match="may hold only"):
            make()
