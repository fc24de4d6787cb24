"""What a file holds: how it is packed, and which format its rows have. The content decides, the name where it cannot.

bytes ──▶ gzip, zstd or plain ──▶ Parquet (by its magic) │ what `input.format` says │ what the name says │ a look
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.packing import Packing, packing_of, unpacked
from streamrunner.runner.sources import open_source

if TYPE_CHECKING:
    from streamrunner.runner.sources import Source

Kind = Literal["jsonl", "text", "csv", "tsv", "parquet"]

_KIND_OF_FORMAT: dict[str, Kind] = {
    "openai": "jsonl", "jsonl": "jsonl", "text": "text", "csv": "csv", "tsv": "tsv", "parquet": "parquet",
}  # fmt: skip
_KIND_OF_SUFFIX: dict[str, Kind] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv",
}  # fmt: skip
_TEXT_SUFFIXES = (".txt", ".text")
_PACKED_SUFFIXES = (".gz", ".zst", ".zstd")
_PARQUET, _BOM = b"PAR1", b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
_HEAD = 1 << 16


class Form(NamedTuple):
    """How a file is to be read."""

    kind: Kind
    packing: Packing

    @property
    def is_plain_lines(self) -> bool:
        """Whether its rows can be read in place."""
        return self == ("jsonl", "plain")


def detect(source: Source, wanted: str) -> Form:
    """Look at the start of a file. wanted: `input.format`.

    Raises RunnerError (`unknown_format`, `format_mismatch`, and those of opening it).
    """
    with open_source(source.uri) as file:
        head = file.read(_HEAD)
    packing = packing_of(head)
    if packing != "plain":
        with open_source(source.uri) as file, unpacked(file, packing, source.name) as content:
            head = _head(content, source)
    return Form(_kind(source, wanted, head), packing)


def _head(content: BinaryIO, source: Source) -> bytes:
    head = content.read(_HEAD)
    if packing_of(head) != "plain":
        raise RunnerError("unknown_format", f"{source.name} is compressed twice: unpack it once")
    return head


def _kind(source: Source, wanted: str, head: bytes) -> Kind:
    if head.startswith(_WIDE_BOMS):
        raise RunnerError("unknown_format", f"{source.name} is UTF-16: save it as UTF-8 (`iconv -f UTF-16 -t UTF-8`)")
    if head.startswith(_PARQUET) or wanted == "parquet":
        return _parquet(source, wanted, head)
    if wanted != "auto":
        return _KIND_OF_FORMAT[wanted]
    suffix = _suffix(source)
    if suffix == ".json":
        _check_no_array(source, head)
    return _KIND_OF_SUFFIX.get(suffix) or _by_look(source, suffix, head)


def _parquet(source: Source, wanted: str, head: bytes) -> Kind:
    if wanted not in ("auto", "parquet") or not head.startswith(_PARQUET):
        what = "Parquet" if head.startswith(_PARQUET) else "no Parquet file"
        raise RunnerError("format_mismatch", f"{source.name} is {what}, but input.format is {wanted}: leave it on auto")
    return "parquet"


def _suffix(source: Source) -> str:
    if source.suffix not in _PACKED_SUFFIXES:
        return source.suffix
    return source._replace(name=source.name.lower().removesuffix(source.suffix)).suffix


def _by_look(source: Source, suffix: str, head: bytes) -> Kind:
    first = next((line for line in head.removeprefix(_BOM).split(b"\n") if line.strip()), b"").strip()
    if suffix in _TEXT_SUFFIXES:
        # Many a file of JSON lines is called .txt; a line of prose is no JSON object.
        return "jsonl" if _is_object(first) else "text"
    if not first or first.startswith(b"{"):
        return "jsonl"
    raise RunnerError(
        "unknown_format",
        f"the format of {source.name} cannot be told from its name or its first line: "
        "set input.format to jsonl, text, csv, tsv or parquet",
    )


def _is_object(line: bytes) -> bool:
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _check_no_array(source: Source, head: bytes) -> None:
    if head.removeprefix(_BOM).lstrip().startswith(b"["):
        raise RunnerError(
            "unknown_format", f"{source.name} is one JSON array: write one row a line (`jq -c '.[]' {source.name}`)"
        )
