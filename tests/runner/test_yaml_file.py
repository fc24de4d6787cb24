from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.yaml_file import MAX_BYTES, MAX_DEPTH, read_yaml

if TYPE_CHECKING:
    from pathlib import Path


def read(tmp_path: Path, content: str | bytes) -> dict[str, object]:
    path = tmp_path / "job.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_yaml(path)


def refused(tmp_path: Path, content: str | bytes) -> RunnerError:
    began = time.monotonic()
    with pytest.raises(RunnerError) as caught:
        read(tmp_path, content)
    assert time.monotonic() - began < 5
    assert caught.value.exit_code == 4
    assert "job.yaml" in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def doubled(levels: int, inner: str = "[x, x]") -> str:
    """Lists of two aliases to the list before: 2 ** levels values once expanded."""
    lines = [f"a0: &a0 {inner}"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def test_a_job_file_with_a_byte_order_mark_anchors_and_a_merge(tmp_path: Path) -> None:
    found = read(
        tmp_path, b"\xef\xbb\xbf" + b"base: &b {n: 1, top_k: 5}\nsampling: {<<: *b, n: 2}\nname: caf\xc3\xa9\n"
    )
    assert found["sampling"] == {"n": 2, "top_k": 5}
    assert found["name"] == "café"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "the key 'a' is there twice: keep one of them (line 3, column 1)"),
        ("a: {b: 1, c: {d: 1, d: 2}}\n", "'d' is there twice"),
        ("a: [\n", "line 2"),
        ("\tx: 1\n", "line 1"),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("- a\n- b\n", "a list"),
        ("hello\n", "only the value 'hello'"),
        ("# nothing\n", "nothing"),
        ("", "nothing"),
        ("a: *unknown\n", "undefined alias"),
        ("? [a]\n: b\n", "unhashable key"),
        ("a: !!bool perhaps\n", "drop the tag"),
        ("a: !!timestamp soon\n", "drop the tag"),
        ("a: !!int many\n", "many"),
        ("a: 2026-13-45\n", "month"),
        (f"a: {'9' * 5000}\n", "digits"),
        ("a: !!python/object/apply:os.system [echo]\n", "python/object"),
        ("a: !include other.yaml\n", "!include"),
        (b"name: caf\xe9\n", "no UTF-8 at byte 9"),
        ("name: t\n".encode("utf-16"), "no UTF-8"),
        (b"name: t\x00\n", "#x0000"),
    ],
)
def test_what_is_no_job_file_is_refused_with_the_reason(tmp_path: Path, content: str | bytes, says: str) -> None:
    error = refused(tmp_path, content)
    assert error.code == "bad_yaml"
    assert says in error.message


@pytest.mark.parametrize(
    "bomb",
    [
        doubled(64),
        doubled(40, "{k: v}"),
        "a: &a {k: v}\nb: &b {<<: [" + ", ".join(["*a"] * 5000) + "]}\nc: [" + ", ".join(["*b"] * 5000) + "]\n",
        "[" * 100_000,
        "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "\n",
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [[[[[[*a{i - 1}]]]]]]\n" for i in range(1, 100)),
        "{" * 30_000,
    ],
    ids=["doubled", "doubled mappings", "merged", "open lists", "deep", "deep through aliases", "open mappings"],
)
def test_a_bomb_is_refused_before_it_grows(tmp_path: Path, bomb: str) -> None:
    assert refused(tmp_path, bomb).code == "bad_yaml"


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: [1, {c: *a}]}\n", "&a {a: *a}\n"])
def test_a_value_that_holds_itself_is_refused(tmp_path: Path, text: str) -> None:
    assert "holds itself, *a" in refused(tmp_path, text).message


def test_the_deepest_document_that_is_allowed_can_be_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "\n")


def test_a_file_of_rows_is_not_taken_for_the_job_file(tmp_path: Path) -> None:
    error = refused(tmp_path, b'{"prompt": "x"}\n' * (MAX_BYTES // 16 + 1))
    assert error.code == "spec_too_large"
    assert "input.path" in error.message


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"no job file .*nothing\.yaml") as caught:
        read_yaml(tmp_path / "nothing.yaml")
    assert caught.value.code == "spec_not_found"
    with pytest.raises(RunnerError, match="directory") as caught:
        read_yaml(tmp_path)
    assert caught.value.code == "spec_unreadable"


_WORDS = st.sampled_from(
    ["a", ": ", "\n", "  ", "- ", "[", "]", "{", "}", "&a ", "*a", ", ", "!!set ", "!!binary ", "!!omap ", "'", '"',
     "? ", "<<", "|\n", "~", "1", ".nan", "1:30:00", "2026-01-01", "#", "---", "...", "%YAML 1.1\n", "\\x", "é", "!x "]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(_WORDS, max_size=12).map("".join))
def test_any_text_is_read_or_refused_in_one_line(tmp_path: Path, text: str) -> None:
    try:
        found: object = read(tmp_path, text)
    except RunnerError as refusal:
        found = refusal
    if isinstance(found, RunnerError):
        assert found.code == "bad_yaml"
        assert "\n" not in found.message
    else:
        assert isinstance(found, dict)
