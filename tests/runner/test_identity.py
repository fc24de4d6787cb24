from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamrunner.runner.identity import Identity, RangeDigest, make_identity, submit_key_of
from streamrunner.runner.inputs import scan_input
from streamrunner.runner.spec import JobSpec

BASE = Identity(
    model="smollm2",
    model_sha256="a" * 64,
    input_sha256="b" * 64,
    ranges=(RangeDigest(0, 64, 1, "1" * 64), RangeDigest(64, 64, 70, "2" * 64)),
    task="chat",
    template=None,
    sampling={"temperature": 0.7, "max_tokens": 16, "stop": []},
)


def changed(**fields: object) -> list[str]:
    return replace(BASE, **fields).differences(BASE)  # type: ignore[arg-type]


def test_the_same_submission_differs_in_nothing_even_through_the_log() -> None:
    recorded = Identity.from_json(json.loads(json.dumps(BASE.to_json())))
    assert BASE.differences(recorded) == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": "other", "model_sha256": "c" * 64}, "model: other weights (smollm2 → other)"),
        ({"model_sha256": "c" * 64}, "model: other weights"),
        ({"task": "completion"}, "task: 'chat' → 'completion'"),
        ({"template": "{{ text }}"}, "input.prompt: None → '{{ text }}'"),
        ({"sampling": {**BASE.sampling, "temperature": 0.9}}, "sampling.temperature: 0.7 → 0.9"),
        ({"sampling": {**BASE.sampling, "seed": 7}}, "sampling.seed: None → 7"),
    ],
)
def test_what_differs_is_named_with_both_values(fields: dict[str, object], says: str) -> None:
    assert changed(**fields) == [says]


def test_a_changed_input_is_named_by_its_rows() -> None:
    other = (BASE.ranges[0], RangeDigest(64, 64, 70, "3" * 64))
    assert changed(input_sha256="c" * 64, ranges=other) == ["input: rows 64-127 (from line 70) changed"]
    shorter = BASE.ranges[:1]
    assert changed(input_sha256="c" * 64, ranges=shorter) == ["input: 128 rows → 64 rows"]


def test_a_changed_file_of_several_is_named_even_through_the_log() -> None:
    old = replace(
        BASE, ranges=tuple(RangeDigest(8 * i, 8, 1, "1" * 64, f"{name}.jsonl") for i, name in enumerate("ab"))
    )
    new = replace(old, input_sha256="c" * 64, ranges=(old.ranges[0], old.ranges[1]._replace(sha256="2" * 64)))
    recorded = Identity.from_json(json.loads(json.dumps(old.to_json())))
    assert old.differences(recorded) == []
    assert new.differences(recorded) == ["input: rows 8-15 (from line 1 of b.jsonl) changed"]


def test_many_changed_ranges_are_counted() -> None:
    old = replace(BASE, ranges=tuple(RangeDigest(i, 1, i + 1, "1" * 64) for i in range(9)))
    new = replace(old, input_sha256="c" * 64, ranges=tuple(RangeDigest(i, 1, i + 1, "2" * 64) for i in range(9)))
    [says] = new.differences(old)
    assert "(and 6 more ranges)" in says


def test_the_same_weights_under_another_name_are_the_same_model() -> None:
    assert changed(model="/a/path/to/smollm2.gguf") == []


def test_the_identity_of_a_submission_is_what_decides_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF weights")
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "a"}\n' * 70)

    def identity(**sections: Any) -> Identity:
        content: dict[str, Any] = {
            "name": "t", "model": "tiny.gguf", "input": {"path": "rows.jsonl", "prompt": "{{ text }}"}, **sections,
        }  # fmt: skip
        spec = JobSpec.model_validate(content)
        return make_identity(spec, scan_input(spec, tmp_path, tmp_path), tmp_path / "cache", tmp_path)

    old = identity()
    assert [one.rows for one in old.ranges] == [*[8] * 8, 6]
    for sections in ({"engine": {"max_num_seqs": 2}}, {"events": {"flush_ms": 9}}, {"outputs": [{"path": "o"}]}):
        assert identity(**sections).differences(old) == []
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").touch()
    assert identity(engine={"lora_path": "adapter"}).differences(old) == ["model: other weights"]
    assert identity(task="chat").differences(old) == ["task: None → 'chat'"]
    assert identity(sampling={"max_tokens": 9}).differences(old) == ["sampling.max_tokens: 16 → 9"]
    lines = [b'{"text": "a"}\n'] * 69 + [b'{"text": "b"}\n']
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines))
    assert identity().differences(old) == ["input: rows 64-69 (from line 65) changed"]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines[:64]))
    assert identity().differences(old) == ["input: 70 rows → 64 rows"]


def test_a_key_is_of_the_name_and_the_file() -> None:
    keys = {
        submit_key_of("a", Path("x/job.yaml")),
        submit_key_of("b", Path("x/job.yaml")),
        submit_key_of("a", Path("y/job.yaml")),
    }
    assert len(keys) == 3
    assert submit_key_of("a", Path("x/../x/job.yaml")) in keys
