"""`job.yaml`: what a user may write, checked before anything else happens. Every key here is implemented.

The ranges of sampling and engine settings are the engine's own: its classes are built from them here.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.spec_control import LimitsSpec, StopRule
from streamrunner.runner.spec_problems import describe_problems
from streamrunner.runner.template import check_template
from streamrunner.runner.units import parse_bytes, parse_seconds
from streamrunner.runner.yaml_file import read_yaml

MAX_NAME = 128
_CREDENTIALS = re.compile(r"://[^/@\s]*:[^/@\s]+@")


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _to_bytes(value: Any) -> Any:
    return parse_bytes(value) if isinstance(value, str) else value


def _duration(value: str) -> str:
    if parse_seconds(value) <= 0:
        raise ValueError("it must be longer than nothing")
    return value


def _name(value: str) -> str:
    if value == "last" or "/" in value or not value.isprintable() or value != value.strip() or value.startswith("."):
        raise ValueError("give it a plain name: printable, no slash, not beginning with a dot, and not `last`")
    return value


def _path(value: str) -> str:
    if "\0" in value:
        raise ValueError("no path has a zero byte in it")
    if _CREDENTIALS.search(value):
        raise ValueError(
            "it has a password in it, which everybody who reads the log would see: leave user and password off and set "
            "them in the environment"
        )
    try:
        Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError("there is no such user: write the folder out, or ./~… for a file of that name") from error
    return value


def _auto_or_bool(value: Any) -> Any:
    if value != "auto" and not isinstance(value, bool):
        raise ValueError("write auto, true or false")
    return value


def _plain_json(value: Any, where: str = "") -> Any:
    """What YAML may hold and JSON cannot would change on its way to the row."""
    if isinstance(value, dict):
        for name, one in value.items():
            if not isinstance(name, str):
                raise ValueError(f"its key {where}{name!r} is no text: put it in quotes")
            _plain_json(one, f"{where}{name}.")
    elif isinstance(value, list):
        for place, one in enumerate(value):
            _plain_json(one, f"{where}{place}.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"its {where[:-1]} is {value}: write a finite number")
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"its {where[:-1]} is no text, number, list or object: put it in quotes")
    return value


# Lax mode would take "0.7" for 0.7 and true for 1: a typo should be told, not guessed.
Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Bool = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(min_length=1)]
FilePath = Annotated[Text, AfterValidator(_path)]
OutputType = Literal["jsonl", "csv", "parquet"]
Request = Annotated[dict[str, Any], AfterValidator(_plain_json)]

_TYPE_OF_SUFFIX: dict[str, OutputType] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


class Section(BaseModel):
    """A part of the file: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class InputSpec(Section):
    """Files of rows: a path, a glob, a URL of fsspec, or `-`. prompt: a template over a row's columns that makes its
    prompt.
    """

    path: FilePath
    format: Literal["auto", "openai", "jsonl", "text", "csv", "tsv", "parquet"] = "auto"
    prompt: Annotated[str, AfterValidator(check_template)] | None = None
    on_invalid: Literal["fail_row", "fail_job"] = "fail_row"


class SamplingSpec(Section):
    """What rows do not say themselves; names, ranges and defaults are the engine's."""

    n: Int = 1
    presence_penalty: Float = 0.0
    frequency_penalty: Float = 0.0
    repetition_penalty: Float = 1.0
    temperature: Float = 1.0
    top_p: Float = 1.0
    top_k: Int = 0
    min_p: Float = 0.0
    max_tokens: Int = 16
    min_tokens: Int = 0
    stop: Annotated[tuple[str, ...], BeforeValidator(_one_or_many)] = ()
    stop_token_ids: tuple[Int, ...] = ()
    bad_words: Annotated[tuple[str, ...], BeforeValidator(_one_or_many)] = ()
    logit_bias: dict[int, Float] | None = None
    allowed_token_ids: tuple[Int, ...] | None = None
    include_stop_str_in_output: Bool = False
    ignore_eos: Bool = False
    seed: Int | None = None
    logprobs: Int | None = None
    prompt_logprobs: Int | None = None
    structured_outputs: Request | None = None

    @model_validator(mode="after")
    def _check_ranges(self) -> SamplingSpec:
        try:
            SamplingParams(**dict(self))
        except EngineError as error:
            raise _problem("sampling", error) from error
        return self


class EngineSpec(Section):
    """How to run the model. kv_cache_memory: bytes, written `2GiB`. lora_path: an adapter; it makes another job."""

    device: Text = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: Int | None = None
    max_num_seqs: Int = 256
    max_num_batched_tokens: Int | None = None
    kv_cache_memory: Annotated[Int, BeforeValidator(_to_bytes)] = 2 << 30
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    quantization: Literal["int8"] | None = None
    enable_prefix_caching: Bool = True
    deterministic: Annotated[bool | Literal["auto"], BeforeValidator(_auto_or_bool)] = "auto"
    lora_path: FilePath | None = None
    step_timeout: Annotated[str, AfterValidator(_duration)] = "5m"

    @property
    def step_timeout_s(self) -> float:
        """Seconds that one step may take before the worker's rows are left to others."""
        return parse_seconds(self.step_timeout)

    @model_validator(mode="after")
    def _check_ranges(self) -> EngineSpec:
        values = dict(self)
        values["kv_cache_memory_bytes"] = values.pop("kv_cache_memory")
        known = {field.name for field in fields(EngineConfig)}
        try:
            EngineConfig(**{name: value for name, value in values.items() if name in known})
        except EngineError as error:
            raise _problem("engine", error) from error
        return self


class EventsSpec(Section):
    """How the log is written. flush_ms: how long tokens are gathered."""

    flush_ms: Annotated[Int, Field(ge=1, le=10_000)] = 50
    progress_interval: Annotated[str, AfterValidator(_duration)] = "1s"
    retention: Literal["live", "full", "results"] = "live"

    @property
    def progress_interval_s(self) -> float:
        """Seconds between two `progress` events."""
        return parse_seconds(self.progress_interval)


class OutputSpec(Section):
    """One place for results. path: relative to the job file, or a URL; its suffix says the type unless `type` does.

    rows_per_part: of outputs that are folders of parts, as Parquet and all remote ones are.
    """

    path: FilePath
    type: OutputType | None = None
    rows: Literal["all", "completed", "failed"] = "all"
    order: Literal["completion", "input"] = "completion"
    rows_per_part: Annotated[Int, Field(ge=1)] = 100_000

    @model_validator(mode="after")
    def _check_type(self) -> OutputSpec:
        meant = type_of_path(self.path)
        if self.type is not None and meant is not None and meant != self.type:
            raise PydanticCustomError(
                "outputs", f"`outputs`: {self.path!r} looks like {meant}, and its type is {self.type}: change either"
            )
        if self.format == "parquet" and self.path.endswith((".gz", ".zst")):
            raise PydanticCustomError(
                "outputs", f"`outputs`: Parquet is compressed inside, so {self.path!r} needs no .gz or .zst"
            )
        return self

    @property
    def format(self) -> OutputType:
        """What is written."""
        return self.type or type_of_path(self.path) or "jsonl"


class JobSpec(Section):
    """A whole job file. Its rows are in a file (`input`) or in place (`requests`)."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_name)]
    model: FilePath
    task: Literal["chat", "completion"] | None = None
    input: InputSpec | None = None
    requests: tuple[Request, ...] | None = None
    sampling: SamplingSpec = SamplingSpec()
    engine: EngineSpec = EngineSpec()
    events: EventsSpec = EventsSpec()
    outputs: tuple[OutputSpec, ...] = ()
    limits: LimitsSpec = LimitsSpec()
    stop_when: tuple[StopRule, ...] = ()
    priority: Int = 0

    @model_validator(mode="before")
    @classmethod
    def _default_output(cls, data: Any) -> Any:
        if isinstance(data, dict) and "outputs" not in data and isinstance(data.get("name"), str):
            return {**data, "outputs": [{"path": f"out/{data['name']}.jsonl"}]}
        return data

    @model_validator(mode="after")
    def _check_sources_and_outputs(self) -> JobSpec:
        if (self.input is None) == (self.requests is None):
            raise PydanticCustomError(
                "rows", "give the rows once: `input: {path: rows.jsonl}` for a file, or `requests: [...]` in place"
            )
        if self.requests == ():
            raise PydanticCustomError("rows", "`requests` is an empty list: write at least one row")
        paths = [os.path.normpath(output.path) for output in self.outputs]
        if len(set(paths)) < len(paths):
            raise PydanticCustomError("outputs", "two `outputs` have the same path: give each its own file")
        if self.input is not None and os.path.normpath(self.input.path) in paths:
            raise PydanticCustomError("outputs", "an output has the path of the input: give it another")
        whole = [output.path for output in self.outputs if output.format == "parquet" or "://" in output.path]
        if self.events.retention == "results" and (whole or not self.outputs):
            # Parts are written again when a row of theirs is retried, and then need every result once more.
            what = f"{whole[0]!r} is written in parts, which need" if whole else "without `outputs` nothing else has"
            raise PydanticCustomError(
                "outputs",
                "`events.retention: results` lets results leave the log once local JSON lines or CSV files have them; "
                "{what} them there: set it to live",
                {"what": what},
            )
        return self


def type_of_path(path: str) -> OutputType | None:
    """The type that a path's suffix names, before that of a compression."""
    name = Path(path.removesuffix(".gz").removesuffix(".zst")).name
    return _TYPE_OF_SUFFIX.get(Path(name).suffix.lower())


def load_spec(path: Path) -> JobSpec:
    """Read and check a job file; `name` defaults to the file's.

    Raises RunnerError (`unknown_key`, `invalid_spec`, and those of `read_yaml`), one sentence a problem.
    """
    data = read_yaml(path)
    data.setdefault("name", path.stem)
    return check_spec(data, path.name)


def check_spec(data: dict[str, Any], where: str) -> JobSpec:
    """Check what a job file holds. Raises RunnerError (`unknown_key`, `invalid_spec`) that names `where`."""
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        code, sentences = describe_problems(error, JobSpec)
        raise RunnerError(code, f"{where}: {'; '.join(sentences)}") from error


def _problem(section: str, error: EngineError) -> PydanticCustomError:
    names = {"kv_cache_memory_bytes": "kv_cache_memory"}
    message = error.message
    for theirs, ours in names.items():
        message = message.replace(theirs, ours)
    return PydanticCustomError("engine_refuses", "{text}", {"text": f"{section}: {message}"})
