"""Settings that every verb takes: from its options, else the environment, else `config.yaml`.

--data-dir DIR   >   RUNNER_DATA_DIR   >   data_dir: DIR in $XDG_CONFIG_HOME/streamrunner/config.yaml   >   default
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Setting(NamedTuple):
    """One setting: its variable, what it is, and how its value in the file is read."""

    variable: str
    meaning: str
    read: Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("write text")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError("write a number of seconds")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("write true or false")
    return value


SETTINGS: dict[str, Setting] = {
    "redis_url": Setting("RUNNER_REDIS_URL", "Redis or Valkey that holds the log", _text),
    "data_dir": Setting("RUNNER_DATA_DIR", "folder of the private server and of converted models", _text),
    "log_timeout": Setting("RUNNER_LOG_TIMEOUT", "seconds to wait for a log that is away", _seconds),
    "quiet": Setting("RUNNER_QUIET", "no progress", _flag),
    "no_color": Setting("NO_COLOR", "no colours", _flag),
}


def config_path() -> Path:
    """`RUNNER_CONFIG`, else the one of the user's configuration folder."""
    named = os.environ.get("RUNNER_CONFIG")
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(named).expanduser() if named else Path(home) / "streamrunner" / "config.yaml"


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a file, checked; a file that is not there has none.

    Raises RunnerError (`unknown_key`, `invalid_config`, and those of `read_yaml`).
    """
    if not path.is_file() or not path.read_bytes().strip():
        return {}
    from streamrunner.runner.yaml_file import read_yaml

    found = read_yaml(path)
    values = {name: _checked(path, name, value) for name, value in found.items()}
    if "data_dir" in values:
        values["data_dir"] = str(path.parent / Path(values["data_dir"]).expanduser())
    return values


def _checked(path: Path, name: Any, value: Any) -> Any:
    if name not in SETTINGS:
        close = difflib.get_close_matches(str(name), SETTINGS, n=1)
        remedy = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(SETTINGS)}"
        raise RunnerError("unknown_key", f"{path}: there is no key `{name}`: {remedy}")
    try:
        return SETTINGS[name].read(value)
    except ValueError as error:
        shown = "***" if name == "redis_url" else repr(value)
        raise RunnerError("invalid_config", f"{path}: `{name}` is {shown}: {error}") from error


def default_map(path: Path | None) -> dict[str, Any]:
    """The settings of a file (None: the user's) as defaults of options."""
    return read_config(path or config_path())


def sources(config: Mapping[str, Any]) -> dict[str, str]:
    """Where each setting comes from, if no option names it: its variable, the file, or the default."""
    return {
        name: setting.variable if os.environ.get(setting.variable) else "config.yaml" if name in config else "default"
        for name, setting in SETTINGS.items()
    }
