"""What a user gets from `pip install`: every file of the four rooms, one import name, nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("runner", "engine", "kernels", "sinks")
# Importing these costs seconds, so verbs that only read must not.
HEAVY = ("torch", "transformers", "numba", "tokenizers", "huggingface_hub", "gguf")


def tracked(*paths: str) -> list[str]:
    """Files git knows or would add: a new one must not be forgotten by the wheel either."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def run_python(code: str, cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONSAFEPATH": ""}
    command = [sys.executable, *options, "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources: a build folder left in the tree would hide what is missing."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked("pyproject.toml", "README.md", "LICENSE", *ROOMS):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    done = subprocess.run([*command, "--wheel-dir", str(built), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [found] = built.glob("*.whl")
    return found


def test_the_wheel_holds_every_file_of_the_four_rooms_and_no_other(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if ".dist-info/" not in name and not name.endswith("/")}
    assert packed == {f"streamrunner/{name}" for name in tracked(*ROOMS)}


def test_the_wheel_carries_the_licence_the_command_and_one_top_level_name(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    [entry_points] = [name for name in names if name.endswith("/entry_points.txt")]
    assert "runner = streamrunner.runner.cli.main:main" in archive.read(entry_points).decode()
    assert {name.split("/")[0].removesuffix("-0.1.0.dist-info") for name in names} == {"streamrunner"}


def test_the_wheel_imports_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path / "site")!r})
        # The editable install of the developer must not answer for the wheel.
        sys.meta_path = [one for one in sys.meta_path if "editable" not in repr(one).lower()]
        import streamrunner.sinks, streamrunner.engine, streamrunner.runner
        from importlib import resources
        print(streamrunner.sinks.__file__)
        print(len(resources.files("streamrunner.sinks.functions").joinpath("sr_v1/base.lua").read_text()))
    """
    done = run_python(code, tmp_path, "-P")
    assert done.returncode == 0, done.stderr
    origin, length = done.stdout.split()
    assert origin.startswith(str(tmp_path))
    assert int(length) > 1000


def test_pyproject_names_every_package() -> None:
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {Path(name).parent for name in tracked(*ROOMS) if name.endswith((".py", ".lua"))}
    assert sorted(settings["packages"]) == sorted("streamrunner." + ".".join(folder.parts) for folder in folders)


@pytest.mark.parametrize("folder", ["kernels", "tests"])
def test_no_init_file_makes_a_folder_importable_by_its_bare_name(folder: str) -> None:
    assert [name for name in tracked(folder) if name.endswith("__init__.py")] == []


def test_no_room_stands_at_top_level_after_importing_everything() -> None:
    modules = [
        "streamrunner." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in tracked(*ROOMS)
        if name.endswith(".py") and not name.endswith("__main__.py")
    ]
    code = f"""
        import importlib, sys
        for name in {modules!r}:
            importlib.import_module(name)
        print([name for name in {ROOMS!r} if name in sys.modules])
    """
    done = run_python(code, ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_name_kernels_is_left_to_the_hugging_face_package() -> None:
    """A regular top-level `kernels` of ours would break every model import of transformers."""
    spec = importlib.util.find_spec("kernels")
    assert spec is None or spec.loader is None or "site-packages" in str(spec.origin)


def test_typing_links_lead_to_the_rooms() -> None:
    links = {path.name: path for path in (ROOT / ".typing" / "streamrunner").iterdir()}
    assert sorted(links) == sorted(ROOMS)
    for room, link in links.items():
        assert link.is_symlink()
        assert not link.readlink().is_absolute()
        assert link.resolve() == ROOT / room


def light_modules() -> list[str]:
    """The command line's modules. Those that run a job import the engine inside the function that does."""
    names = [name.removesuffix(".py") for name in tracked("runner/cli") if name.endswith(".py")]
    return ["streamrunner." + name.removesuffix("/__init__").replace("/", ".") for name in names]


@pytest.mark.parametrize("module", light_modules())
def test_the_command_line_starts_without_the_heavy_libraries(module: str, tmp_path: Path) -> None:
    code = f"""
        import importlib, sys
        importlib.import_module({module!r})
        print([name for name in {HEAVY!r} if name in sys.modules])
    """
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["list"], ["list", "--json"], ["status", "last"], ["events", "last"], ["status", "--help"]],
    ids=" ".join,
)
def test_reading_verbs_run_without_the_heavy_libraries(arguments: list[str], tmp_path: Path) -> None:
    """Run in a fresh data dir, with the real server: what they say is tested elsewhere, here only what they load."""
    code = f"""
        import os, sys
        os.environ["RUNNER_DATA_DIR"] = {str(tmp_path / "data")!r}
        os.environ.pop("RUNNER_REDIS_URL", None)
        from streamrunner.runner.cli.fail import guarded
        from streamrunner.runner.cli.main import cli
        guarded(lambda: cli({arguments!r}, prog_name="runner", standalone_mode=False))
        print("loaded:", [name for name in {HEAVY!r} if name in sys.modules])
    """
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded: []"
