from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.spec import JobSpec, load_spec

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "name: t\nmodel: m\ninput: {path: rows.jsonl}\n"


def load(tmp_path: Path, text: str) -> JobSpec:
    (tmp_path / "job.yaml").write_text(text, "utf-8")
    return load_spec(tmp_path / "job.yaml")


def refused(tmp_path: Path, text: str) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 4
    assert "\n" not in caught.value.message
    assert "pydantic" not in caught.value.message
    return caught.value


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    spec = load(tmp_path, "model: m\ninput: {path: rows.jsonl}\n")
    assert spec.name == "job"
    assert [output.path for output in spec.outputs] == ["out/job.jsonl"]
    assert (spec.sampling.temperature, spec.engine.max_num_seqs, spec.events.flush_ms) == (1.0, 256, 50)


def test_sizes_and_durations_are_read_as_people_write_them(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + "engine: {kv_cache_memory: 512MiB}\nevents: {progress_interval: 500ms}\n")
    assert spec.engine.kv_cache_memory == 512 << 20
    assert spec.events.progress_interval_s == 0.5


def test_a_spec_survives_the_log(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + 'sampling: {stop: ["\\n\\n"], seed: 7, n: 2}\nengine: {kv_cache_memory: 1GiB}\n')
    assert JobSpec.model_validate(spec.model_dump(mode="json", exclude_none=True)) == spec


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("sampling: {temprature: 1}", "sampling.temperature"),
        ("sampling: {max_token: 5}", "sampling.max_tokens"),
        ("max_tokens: 5", "sampling.max_tokens"),
        ("temperature: 5", "sampling.temperature"),
        ("engin: {}", "engine"),
        ("engine: {max_seqs: 4}", "engine.max_num_seqs"),
        ("outputs: [{type: jsonl, pth: x}]", "path"),
    ],
)
def test_an_unknown_key_is_answered_with_the_one_that_was_meant(tmp_path: Path, key: str, meant: str) -> None:
    error = refused(tmp_path, GOOD + key + "\n")
    assert error.code == "unknown_key"
    assert meant in error.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("input: {path: x}\n", "model"),
        (GOOD + "sampling: {temperature: hot}\n", "temperature"),
        (GOOD + "sampling: {temperature: -1}\n", "temperature"),
        (GOOD + "sampling: {top_p: 0}\n", "top_p"),
        (GOOD + "engine: {dtype: float16}\n", "dtype"),
        (GOOD + "engine: {device: tpu}\n", "device"),
        (GOOD + "engine: {kv_cache_memory: lots}\n", "kv_cache_memory"),
        (GOOD + "events: {retention: forever}\n", "retention"),
        (GOOD + "outputs: [{path: x}, {path: x}]\n", "path"),
        (GOOD + "requests: [{prompt: x}]\n", "requests"),
        ("model: m\n", "input"),
        (GOOD.replace("rows.jsonl}", 'rows.jsonl, prompt: "{{ text"}'), "prompt"),
        ("- a\n- b\n", ""),
        ("name: [\n", ""),
        (GOOD + "name: again\n", "name"),
        ("", ""),
        ("a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" + "\n".join(
            f"{chr(99 + i)}: &{chr(99 + i)} [{','.join(['*' + chr(98 + i)] * 10)}]" for i in range(8)) + "\n", ""),
        ("x: !!python/object/apply:os.system [echo]\n", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(tmp_path, text).message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('model: m\ninput: {path: "a\\0b"}\n', "zero byte"),
        ("model: m\ninput: {path: ~no-such-user-here/x}\n", "no such user"),
        (GOOD + "outputs: [{path: ~no-such-user-here/x}]\n", "no such user"),
        ("model: ~no-such-user-here/x\ninput: {path: x}\n", "no such user"),
        ("name: last\nmodel: m\ninput: {path: x}\n", "`last`"),
        ("name: a/b\nmodel: m\ninput: {path: x}\n", "no slash"),
        ("name: .hidden\nmodel: m\ninput: {path: x}\n", "dot"),
        ('name: "\\e[31mred"\nmodel: m\ninput: {path: x}\n', "printable"),
        (f"name: {'x' * 129}\nmodel: m\ninput: {{path: x}}\n", "at most 128"),
    ],
)
def test_names_and_paths_that_no_system_has_are_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(tmp_path, text).message


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (".nan", "`requests[0]`"),
        ("-.inf", "write a finite number"),
        ("2026-01-01", "put it in quotes"),
        ("!!binary aGk=", "put it in quotes"),
        ("{a: [1, 2026-01-01]}", "its x.a.1 is"),
        ("{1: a}", "key x.1 is no text"),
    ],
)
def test_rows_in_place_hold_what_a_line_of_json_could(tmp_path: Path, value: str, says: str) -> None:
    """YAML has values that JSON lacks; they would reach the model as something else, or as nothing."""
    assert says in refused(tmp_path, f"model: m\nrequests: [{{prompt: hi, x: {value}}}]\n").message
    assert load(tmp_path, f"model: m\nrequests: [{{prompt: hi, x: '{value}'}}]\n").requests


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"nothing\.yaml"):
        load_spec(tmp_path / "nothing.yaml")
