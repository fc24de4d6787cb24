"""Reading YAML that anybody may have written: no code, no bombs, no key that silently wins over its twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
# What aliases may blow the document up to; without aliases 1 MiB stays far below.
MAX_NODES = 1_000_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeyLoader(_Loader):  # type: ignore[misc]
    """A safe loader that refuses a mapping with the same key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping, if its keys (as written, before `<<` is merged) differ."""
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice: keep one of them", key.start_mark
                )
            seen.add(str(key.value))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises RunnerError (`spec_not_found`, `spec_unreadable`, `spec_too_large`, `bad_yaml`)."""
    text = _read_text(path)
    try:
        _Shape(path).check(text)
        document = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - derived from the safe loader
    except yaml.YAMLError as error:
        raise RunnerError("bad_yaml", f"{path} is no valid YAML: {_where(error)}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise RunnerError("bad_yaml", f"{path} has a value that YAML cannot read: {error}") from error
    except (LookupError, AttributeError) as error:  # PyYAML trips over `!!bool maybe` and `!!timestamp soon`
        raise RunnerError("bad_yaml", f"{path} has a value that is not what its `!!` tag says: drop the tag") from error
    if not isinstance(document, dict):
        raise RunnerError("bad_yaml", f"{path} holds {_kind(document)}, not `key: value` lines such as `model: …`")
    return document


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise RunnerError("spec_not_found", f"there is no job file {path}: check the path") from error
    except OSError as error:
        raise RunnerError("spec_unreadable", f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise RunnerError(
            "spec_too_large",
            f"{path} is larger than {MAX_BYTES >> 20} MiB: is it the job file? Rows belong into the file at input.path",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RunnerError("bad_yaml", f"{path} is no UTF-8 at byte {error.start}: save it as UTF-8") from error


class _Shape:
    """Depth and size with all aliases expanded, from the parser's events: before anything recurses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_nodes = 0
        # Collections that are being read: anchor, nodes before, levels found inside.
        self._open: list[tuple[str | None, int, int]] = []
        # Anchor → its nodes and levels.
        self._known: dict[str, tuple[int, int]] = {}

    def check(self, text: str) -> None:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):
                self._add(*self._referred(event.anchor or ""))
            elif isinstance(event, yaml.CollectionStartEvent):
                self._add(1, 1)
                self._open.append((event.anchor, self._num_nodes - 1, 1))
            elif isinstance(event, yaml.CollectionEndEvent):
                self._close()
            elif isinstance(event, yaml.ScalarEvent):
                self._add(1, 0)

    def _referred(self, anchor: str) -> tuple[int, int]:
        if any(anchor == one for one, _, _ in self._open):
            raise RunnerError("bad_yaml", f"{self._path} has a value that holds itself, *{anchor}: write it out")
        return self._known.get(anchor, (1, 0))

    def _add(self, num_nodes: int, levels: int) -> None:
        self._num_nodes += num_nodes
        self._deepen(levels)
        if self._num_nodes > MAX_NODES or len(self._open) + levels > MAX_DEPTH:
            raise RunnerError(
                "bad_yaml",
                f"{self._path} has more than {MAX_NODES} values or {MAX_DEPTH} levels (aliases expanded): "
                "a job file is a short list of keys",
            )

    def _close(self) -> None:
        anchor, before, levels = self._open.pop()
        if anchor:
            self._known[anchor] = (self._num_nodes - before, levels)
        self._deepen(levels)

    def _deepen(self, levels: int) -> None:
        if self._open:
            anchor, before, deepest = self._open[-1]
            self._open[-1] = (anchor, before, max(deepest, levels + 1))


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark
        return error.problem + (f" (line {mark.line + 1}, column {mark.column + 1})" if mark else "")
    return " ".join(str(error).split())


def _kind(document: object) -> str:
    if document is None:
        return "nothing"
    return "a list" if isinstance(document, list) else f"only the value {str(document)[:40]!r}"
