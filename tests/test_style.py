"""House rules that no linter knows: sizes, README files, and what must not be named in a public project."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("runner", "engine", "kernels", "sinks")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES_P90 = 35
# Spelled in pieces, so that this file does not name what it looks for.
MACHINE_PATHS = re.compile("|".join(("/wo" + "rk/", "/ro" + "ot/", "/fa" + "rm/", "fa" + "rm-", r"/\.libra" + "ry")))
REGISTRY_HOSTS = re.compile(
    "|".join(("pypi" + r"\.org", "pythonhosted" + r"\.org", "registry" + r"\.npmjs", "index-" + "url http"))
)
UNFINISHED = re.compile(
    r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK", "NotImplemented" + "Error")) + r")\b"
)


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True, capture_output=True)
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def text_of(name: str) -> str:
    """Empty for what is not text."""
    try:
        return (ROOT / name).read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def function_lengths(name: str) -> list[int]:
    tree = ast.parse(text_of(name))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]


def lines_matching(pattern: re.Pattern[str], names: list[str]) -> list[str]:
    return [
        f"{name}:{number}"
        for name in names
        for number, line in enumerate(text_of(name).splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_python_file_is_longer_than_500_lines() -> None:
    lengths = {name: text_of(name).count("\n") for name in tracked("*.py")}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_nine_functions_in_ten_fit_on_a_screen(room: str) -> None:
    lengths = sorted(length for name in tracked(f"{room}/*.py") for length in function_lengths(name))
    assert not lengths or lengths[int(len(lengths) * 0.9)] <= MAX_FUNCTION_LINES_P90


def test_every_package_has_a_readme() -> None:
    packages = {Path(name).parent for room in ROOMS for name in tracked(f"{room}/*.py")}
    rooms = {package for package in packages if len(package.parts) == 1}
    # A subpackage may be explained in the README of its room, by its name.
    for package in packages - rooms:
        own, above = ROOT / package / "README.md", ROOT / package.parts[0] / "README.md"
        assert own.exists() or f"{package.name}/" in above.read_text(), f"{package} is explained nowhere"
    for room in rooms:
        assert (ROOT / room / "README.md").exists(), f"{room}/README.md is missing"


def test_nothing_is_left_unfinished() -> None:
    assert lines_matching(UNFINISHED, tracked("*.py", "*.lua", "*.md", "*.sh", "*.mjs", "Makefile")) == []


def test_no_path_of_one_machine_and_no_registry_is_named() -> None:
    names = tracked()
    assert lines_matching(MACHINE_PATHS, names) == []
    assert lines_matching(REGISTRY_HOSTS, names) == []


def test_no_tracked_file_is_larger_than_a_megabyte() -> None:
    assert [name for name in tracked() if (ROOT / name).stat().st_size > 1 << 20] == []
