"""The parts of a job file that stop a job by themselves: `limits` and `stop_when`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from streamrunner.runner.units import parse_count, parse_seconds

_Int = Annotated[int, Field(strict=True)]


def _to_count(value: Any) -> Any:
    return parse_count(value) if isinstance(value, str) else value


def _to_text(value: Any) -> Any:
    # YAML makes a point in time of 2026-12-02T08:00:00Z before anybody can ask for text.
    return value.isoformat() if isinstance(value, datetime) else value


def _deadline(value: str) -> str:
    moment = _moment(value)
    if moment is None and parse_seconds(value) <= 0:
        raise ValueError("it must be longer than nothing")
    if moment is not None and moment.tzinfo is None:
        raise ValueError("say in which time zone: 2026-12-02T08:00:00Z, or +01:00 at its end")
    return value


def _moment(value: str) -> datetime | None:
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from error
    return value


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LimitsSpec(_Section):
    """What ends a job before its rows do. deadline: a duration from the first start, or a point in time with its zone.

    max_error_rate: failed rows over those that have their ending, 0 to 1.
    """

    deadline: Annotated[str, BeforeValidator(_to_text), AfterValidator(_deadline)] | None = None
    max_output_tokens: Annotated[_Int, BeforeValidator(_to_count), Field(ge=1)] | None = None
    max_error_rate: Annotated[float, Field(strict=True, ge=0, lt=1)] | None = None
    max_failed: Annotated[_Int, Field(ge=0)] | None = None

    def deadline_ms(self, start_ms: int) -> int | None:
        """The deadline as Unix ms, of a job that started then; None if there is none."""
        if self.deadline is None:
            return None
        moment = _moment(self.deadline)
        if moment is not None:
            return int(moment.timestamp() * 1000)
        return start_ms + int(parse_seconds(self.deadline) * 1000)


class StopRule(_Section):
    """Pauses the job once `share` of the last `window` completed rows look like this, with `min_rows` of them at least.

    A row looks like it if any of its choices does: its text has the regex somewhere, is empty but for blanks, or ended
    for this reason.
    """

    regex: Annotated[str, Field(min_length=1), AfterValidator(_regex)] | None = None
    empty: Literal[True] | None = None
    finish_reason: Literal["length", "stop"] | None = None
    share: Annotated[float, Field(gt=0, le=1)]
    window: Annotated[_Int, Field(ge=1, le=100_000)] = 100
    min_rows: Annotated[_Int, Field(ge=1)] = 20

    @model_validator(mode="after")
    def _check(self) -> StopRule:
        if sum(one is not None for one in (self.regex, self.empty, self.finish_reason)) != 1:
            raise ValueError("give each rule one of `regex`, `empty: true` and `finish_reason`")
        if self.min_rows > self.window:
            raise ValueError(f"min_rows is {self.min_rows} and the window {self.window}: a window never has that many")
        return self

    def __str__(self) -> str:
        """The rule as it stands in the job file."""
        what = (
            f"regex {self.regex!r}" if self.regex else "empty" if self.empty else f"finish_reason {self.finish_reason}"
        )
        return f"{what}, share {self.share:g}"
