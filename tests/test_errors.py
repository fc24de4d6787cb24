"""Every code that the program can end with, or put in a result, is explained in docs/errors.md, and nothing else is."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "errors.md"
ERRORS = {"EngineError", "RunnerError", "SinkError", "BadRow", "RowError", "InputError", "InvalidInput", "refused_line"}
CODE = re.compile(r"[a-z]+(_[a-z0-9]+)+")
_ROW = re.compile(r"^\| `(\w+)` \|([^|]+)\|([^|]+)\|$", re.MULTILINE)


def sources() -> Iterator[Path]:
    for room in ("runner", "engine", "sinks"):
        yield from sorted((ROOT / room).rglob("*.py"))


def codes_in(tree: ast.AST) -> Iterator[str]:
    """First arguments of our errors, and the `code` of errors that are written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in ERRORS:
            yield from (text for argument in node.args[:1] for text in texts_of(argument))
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "code":
                    yield from texts_of(value)


def name_of(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def texts_of(node: ast.expr) -> Iterator[str]:
    """The texts that an argument may be: either branch of a choice."""
    for part in [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and CODE.fullmatch(part.value):
            yield part.value


def raised() -> dict[str, str]:
    """Code → a file that uses it."""
    return {
        code: str(path.relative_to(ROOT)) for path in sources() for code in codes_in(ast.parse(path.read_text("utf-8")))
    }


def documented() -> dict[str, tuple[str, str]]:
    """Code → what it means, and what to do."""
    return {code: (meaning.strip(), remedy.strip()) for code, meaning, remedy in _ROW.findall(PAGE.read_text("utf-8"))}


def test_every_code_of_the_program_is_explained() -> None:
    missing = {code: file for code, file in raised().items() if code not in documented()}
    assert missing == {}, "add a row to docs/errors.md: | `code` | meaning | what to do |"


def test_no_code_is_explained_that_the_program_does_not_have() -> None:
    everything = "".join(path.read_text("utf-8") for path in sources())
    assert [code for code in documented() if not re.search(rf'["\[]{code}["\]]', everything)] == []


def test_no_code_is_explained_twice() -> None:
    codes = [code for code, _, _ in _ROW.findall(PAGE.read_text("utf-8"))]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("code", sorted(documented()) if PAGE.exists() else [])
def test_an_explanation_says_what_it_means_and_what_to_do(code: str) -> None:
    meaning, remedy = documented()[code]
    assert len(meaning) > 10
    assert len(remedy) > 5
