"""What every part of a running job needs to know of it: fixed once the job is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.runner.spec import JobSpec
    from streamrunner.sinks.keys import JobKeys


@dataclass(frozen=True, slots=True)
class JobContext:
    """One job as its worker and exporters see it.

    seed: drawn at submit if the spec names none, so that every attempt of a row samples the same tokens.
    base: the folder that relative paths of the spec start from.
    data_dir: this process's own, where a copied input is looked for and made again if the submitter's is out of reach.
    """

    job_id: str
    keys: JobKeys
    spec: JobSpec
    seed: int
    base: Path
    created_s: int
    data_dir: Path | None = None
