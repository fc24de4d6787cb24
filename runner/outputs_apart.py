"""Outputs must not be inputs: a job would read its own results, or write over the rows it has yet to run."""

from __future__ import annotations

import glob
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.sources import is_url

if TYPE_CHECKING:
    from streamrunner.runner.spec import JobSpec


def check_outputs_apart(spec: JobSpec, base: Path) -> None:
    """Raises RunnerError (`output_is_input`) if an output is an input file, or would match the input's pattern."""
    source = "" if spec.input is None else spec.input.path.removeprefix("file://")
    if not source or is_url(source):
        return
    pattern = base / Path(source).expanduser()
    for output in spec.outputs:
        path = base / Path(output.path).expanduser()
        if path.resolve() == pattern.resolve() or (glob.has_magic(str(pattern)) and _matches(path, pattern)):
            raise RunnerError(
                "output_is_input",
                f"the output {output.path} is part of the input {source}: write it elsewhere",
            )


def _matches(path: Path, pattern: Path) -> bool:
    parts, wanted = (Path(os.path.normpath(one.absolute())).parts for one in (path, pattern))
    if "**" in wanted:
        return fnmatchcase("/".join(parts), "/".join(wanted).replace("**/", "*"))
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
