"""The job that is killed: 64 chat rows, sampled with a seed; every second row has n = 2 and stop strings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 64
MODEL = "smollm2-135m-instruct"
_TASKS = (
    "Write two sentences about {}.",
    "What should a visitor know about {}?",
    "Describe {} to a child.",
    "Give one surprising fact about {}.",
)
_THINGS = (
    "the harbour at night", "a mountain railway", "bees in winter", "old maps", "the tides", "a village bakery",
    "the northern lights", "paper boats", "a lighthouse", "desert rain", "clockmakers", "a river ferry",
    "wild strawberries", "the first snow", "street musicians", "a library on wheels",
)  # fmt: skip


def make_rows(max_tokens: int) -> list[dict[str, Any]]:
    """The requests in OpenAI's batch format."""
    return [_make_row(index, max_tokens) for index in range(NUM_ROWS)]


def _make_row(index: int, max_tokens: int) -> dict[str, Any]:
    prompt = _TASKS[index % len(_TASKS)].format(_THINGS[index // len(_TASKS)])
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
    if index % 2:
        body |= {"n": 2, "stop": [". ", "\n\n"]}
    return {"custom_id": f"row-{index:02}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def write_job(folder: Path, name: str, seed: int, max_tokens: int) -> Path:
    """Write rows and job file; returns the job file. The output goes to `<folder>/<name>.out.jsonl`."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in make_rows(max_tokens)))
    job = folder / f"{name}.yaml"
    # JSON is YAML, and needs no library.
    job.write_text(
        json.dumps(
            {
                "name": name,
                "model": MODEL,
                "task": "chat",
                "input": {"path": rows.name},
                "sampling": {"temperature": 0.8, "seed": seed},
                "outputs": [{"type": "jsonl", "path": output_of(name)}],
            },
            indent=1,
        )
    )
    return job


def output_of(name: str) -> str:
    """Name of a job's output file, beside its job file."""
    return f"{name}.out.jsonl"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The result lines; every one must be whole JSON, since the job has ended."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
