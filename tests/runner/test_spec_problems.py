from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streamrunner.runner.spec import JobSpec
from streamrunner.runner.spec_problems import closest_key, describe_problems, schema_keys

GOOD: dict[str, Any] = {"name": "t", "model": "m", "input": {"path": "rows.jsonl"}}


def problems(**sections: Any) -> tuple[str, list[str]]:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({**GOOD, **sections})
    return describe_problems(caught.value, JobSpec)


def only(**sections: Any) -> str:
    [sentence] = problems(**sections)[1]
    return sentence


def test_every_key_of_a_job_file_is_known_with_its_path() -> None:
    keys = list(schema_keys(JobSpec))
    assert len(keys) == len(set(keys))
    assert {"name", "input.path", "sampling.top_p", "engine.kv_cache_memory", "events.retention", "outputs.path"} <= {
        *keys
    }


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("sampling.temprature", "sampling.temperature"),
        ("Model", "model"),
        ("max_tokens", "sampling.max_tokens"),
        ("engine.temperature", "sampling.temperature"),
        ("input.file_path", "input.path"),
        ("outputs[3].pth", "outputs.path"),
        ("output", "outputs"),
        ("zzz", None),
    ],
)
def test_the_key_that_was_meant_is_found_wherever_it_belongs(key: str, meant: str | None) -> None:
    assert closest_key(key, JobSpec) == meant


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"zzz": 1}, "there is no key `zzz`: docs/job-yaml.md lists those there are"),
        ({"sampling": {"top-p": 1}}, "there is no key `sampling.top-p`: did you mean `sampling.top_p`?"),
        ({"sampling.top_p": 1}, "`sampling.top_p` is one key here: write `sampling: {top_p: …}`"),
        ({"task": "poem"}, "`task` is 'poem': write chat or completion"),
        ({"sampling": None}, "`sampling` is empty: write `key: value` lines or {key: value}"),
        ({"sampling": {"n": True}}, "`sampling.n` is true: write a whole number"),
        ({"sampling": {"n": 1.0}}, "`sampling.n` is 1.0: write a whole number"),
        ({"sampling": {"max_tokens": "5"}}, "`sampling.max_tokens` is '5': write it as 5"),
        ({"sampling": {"temperature": "1e-1"}}, "`sampling.temperature` is '1e-1': write it as 0.1"),
        ({"sampling": {"temperature": "hot"}}, "`sampling.temperature` is 'hot': write a number"),
        ({"sampling": {"temperature": "inf"}}, "`sampling.temperature` is 'inf': write a number"),
        ({"sampling": {"temperature": float("nan")}}, "`sampling.temperature` is nan: write a finite number"),
        ({"sampling": {"stop": ["a", 1]}},
         "`sampling.stop[1]` is 1: write text (in quotes, if YAML takes it for something else)"),
        ({"sampling": {"stop_token_ids": 5}}, "`sampling.stop_token_ids` is 5: write a list"),
        ({"sampling": {"top_p": 0}}, "sampling: top_p is 0.0, it must be above 0 and at most 1"),
        ({"engine": {"deterministic": "maybe"}}, "`engine.deterministic` is 'maybe': write auto, true or false"),
        ({"engine": {"kv_cache_memory": "lots"}},
         "`engine.kv_cache_memory` is 'lots': write a size such as 2GiB or 512MiB"),
        ({"engine": {"kv_cache_memory": 0}}, "engine: kv_cache_memory is 0, it must be at least 1"),
        ({"events": {"flush_ms": 0}}, "`events.flush_ms` is 0: write at least 1"),
        ({"events": {"flush_ms": 10**6}}, "`events.flush_ms` is 1000000: write at most 10000"),
        ({"events": {"progress_interval": "0s"}}, "`events.progress_interval` is '0s': it must be longer than nothing"),
        ({"outputs": [{"path": ""}]}, "`outputs[0].path` is '': write something"),
        ({"outputs": [{}]}, "`outputs[0].path` is missing"),
        ({1: "x"}, "a key is 1: write text (in quotes, if YAML takes it for something else)"),
        ({"input": None}, "give the rows once: `input: {path: rows.jsonl}` for a file, or `requests: [...]` in place"),
        ({"input": None, "requests": []}, "`requests` is an empty list: write at least one row"),
        ({"input": None, "requests": [5]}, "`requests[0]` is 5: write `key: value` lines or {key: value}"),
    ],
)  # fmt: skip
def test_one_problem_is_one_sentence_with_its_remedy(sections: dict[Any, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({**GOOD, **sections})
    assert describe_problems(caught.value, JobSpec)[1] == [sentence]


def test_a_missing_model_says_what_one_is() -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({"name": "t", "input": {"path": "x"}})
    code, [sentence] = describe_problems(caught.value, JobSpec)
    assert code == "invalid_spec"
    assert sentence.startswith("`model` is missing: a hub id, a folder")


def test_several_problems_are_all_told_and_an_unknown_key_gives_the_code() -> None:
    code, sentences = problems(sampling={"temprature": 1, "n": "many"}, task="poem")
    assert code == "unknown_key"
    assert len(sentences) == 3


def test_a_line_end_in_a_key_is_shown_as_an_escape() -> None:
    assert "`input.a\\nb`" in only(input={"path": "x.jsonl", "a\nb": 1})


def test_a_long_value_is_cut() -> None:
    assert len(only(task="x" * 10_000)) < 150


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
_SECTIONS = st.fixed_dictionaries({}, optional={name.partition(".")[0]: _VALUES for name in schema_keys(JobSpec)})


@given(_SECTIONS | st.sampled_from(["sampling", "engine", "events", "input"]).flatmap(
    lambda section: st.fixed_dictionaries({}, optional={
        key.partition(".")[2]: _VALUES for key in schema_keys(JobSpec) if key.startswith(f"{section}.")
    }).map(lambda values: {section: values})
))  # fmt: skip
def test_any_values_are_a_spec_or_problems_in_sentences(sections: dict[str, Any]) -> None:
    try:
        spec = JobSpec.model_validate({**GOOD, **sections})
    except ValidationError as error:
        code, sentences = describe_problems(error, JobSpec)
        problem_texts = [code, *sentences]
    else:
        problem_texts = []
        assert JobSpec.model_validate(spec.model_dump(mode="json", exclude_none=True)) == spec
    assert all("\n" not in text and "pydantic" not in text for text in problem_texts)
