"""When two submissions are the same job: model, input, task, template and sampling. All else may change on the way."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.runner.inputs import InputScan
    from streamrunner.runner.spec import JobSpec

_SHOWN_RANGES = 3


class RangeDigest(NamedTuple):
    """One range of the input: rows [first, first + rows) from physical `line` on, of `file` where there are several."""

    first: int
    rows: int
    line: int
    sha256: str
    file: str = ""

    def to_json(self) -> list[Any]:
        """The digest is cut to 16 characters; a file without a name takes no place."""
        return [*self[:3], self.sha256[:16], *([self.file] if self.file else [])]

    @property
    def where(self) -> str:
        """As a person is told it."""
        file = f" of {self.file}" if self.file else ""
        return f"rows {self.first}-{self.first + self.rows - 1} (from line {self.line}{file})"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a job is. `model_sha256` is of the weights (a LoRA adapter among them), so that the same name with other
    weights is another job.
    """

    model: str
    model_sha256: str
    input_sha256: str
    ranges: tuple[RangeDigest, ...]
    task: str | None
    template: str | None
    sampling: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As it stands in `job.submitted`."""
        return asdict(self) | {"ranges": [one.to_json() for one in self.ranges]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Identity:
        """The identity an earlier submit recorded."""
        return cls(**{**data, "ranges": tuple(RangeDigest(*one) for one in data["ranges"])})

    def differences(self, old: Identity) -> list[str]:
        """What this submission has changed since, in words."""
        found: list[str] = []
        if self.model_sha256 != old.model_sha256:
            names = f" ({old.model} → {self.model})" if self.model != old.model else ""
            found.append(f"model: other weights{names}")
        for name in ("task", "template"):
            found += _changed(name if name == "task" else "input.prompt", getattr(old, name), getattr(self, name))
        for name in sorted(self.sampling.keys() | old.sampling.keys()):
            found += _changed(f"sampling.{name}", old.sampling.get(name), self.sampling.get(name))
        if self.input_sha256 != old.input_sha256:
            found.append(f"input: {_changed_rows(old.ranges, self.ranges)}")
        return found


def make_identity(spec: JobSpec, scan: InputScan, cache_dir: Path, base: Path | None = None) -> Identity:
    """The identity of a checked spec and its scanned input. Raises EngineError if the model is not to be found."""
    from streamrunner.engine.convert import model_digest
    from streamrunner.engine.synthetic import SyntheticModel

    synthetic = SyntheticModel.of(spec.model)
    return Identity(
        model=spec.model,
        model_sha256=synthetic.digest
        if synthetic
        else model_digest(spec.model, cache_dir, base, spec.engine.lora_path),
        input_sha256=scan.sha256,
        ranges=tuple(
            RangeDigest(one.first, one.count, one.line, one.sha256, scan.files.get(one.uri, "")) for one in scan.ranges
        ),
        task=spec.task,
        template=spec.input.prompt if spec.input is not None else None,
        sampling=spec.sampling.model_dump(mode="json", exclude_none=True),
    )


def submit_key_of(name: str, spec_path: Path) -> str:
    """The submit key of a job name and the file it comes from."""
    return hashlib.sha256(f"{name}\0{spec_path.resolve()}".encode()).hexdigest()[:32]


def _changed(name: str, old: Any, new: Any) -> list[str]:
    return [] if old == new else [f"{name}: {old!r} → {new!r}"]


def _changed_rows(old: tuple[RangeDigest, ...], new: tuple[RangeDigest, ...]) -> str:
    changed = [
        mine.where
        for theirs, mine in zip(old, new, strict=False)
        if (theirs.rows, theirs.sha256[:16]) != (mine.rows, mine.sha256[:16])
    ]
    num_old, num_new = (sum(one.rows for one in ranges) for ranges in (old, new))
    parts = [", ".join(changed[:_SHOWN_RANGES]) + " changed"] if changed else []
    if len(changed) > _SHOWN_RANGES:
        parts[0] += f" (and {len(changed) - _SHOWN_RANGES} more ranges)"
    if num_old != num_new:
        parts.append(f"{num_old} rows → {num_new} rows")
    return ", ".join(parts) or "its bytes changed"
