"""What a job would ask of the engine and of the machine, before it runs: every row is rendered and counted.

rows ──template, tokenizer──▶ prompt tokens, codes of rows that cannot run ──× speed──▶ time
                              limits ──────────────────────────────────────────────────▶ memory, size of the log
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrunner.engine.errors import EngineError
from streamrunner.engine.models.config import read_config
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.inputs import read_range
from streamrunner.runner.request import prepare_request
from streamrunner.runner.row_work import token_limit
from streamrunner.runner.rows import RowError, parse_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.runner.inputs import InputScan
    from streamrunner.runner.rows import Row
    from streamrunner.runner.spec import JobSpec

# On the server per row (terminal event, payload, index) and per token (twice: as a delta and in the payload).
_LOG_BYTES_PER_ROW, _LOG_BYTES_PER_TOKEN = 900, 45
_SAMPLES = 64
_OVER = "context_length_exceeded"


@dataclass(slots=True)
class TokenCounts:
    """prompts: tokens of each row that can run. output_limit: of all their answers at their limits.

    failing: the others, by code. samples: the first prompts, to measure with.
    """

    prompts: array[int] = field(default_factory=lambda: array("I"))
    sequences: int = 0
    output_limit: int = 0
    longest_limit: int = 0
    failing: Counter[str] = field(default_factory=Counter)
    samples: list[list[int]] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """Of all rows that can run."""
        return int(np.frombuffer(self.prompts, np.uint32).sum()) if self.prompts else 0

    def percentile(self, share: float) -> int:
        """The prompt length that this share of the rows does not exceed."""
        if not self.prompts:
            return 0
        return int(np.percentile(np.frombuffer(self.prompts, np.uint32), 100 * share, method="inverted_cdf"))


def count_tokens(
    spec: JobSpec, scan: InputScan, tokenizer: Tokenizer, max_model_len: int, on_rows: Callable[[int], None]
) -> TokenCounts:
    """Render and count every row, one range at a time (4 bytes a row). on_rows: told of every few rows counted."""
    counts = TokenCounts()
    for number_of_rows, rows in _rows(spec, scan):
        for row in rows:
            if isinstance(row, RowError):
                counts.failing[row.code] += 1
            else:
                _count(counts, row, spec, tokenizer, max_model_len)
        on_rows(number_of_rows)
    return counts


def _rows(spec: JobSpec, scan: InputScan) -> Iterator[tuple[int, list[Row | RowError]]]:
    for one in scan.ranges:
        found = read_range(one)
        yield len(found), [parse_row(raw, row, line, spec) for row, line, raw in found]


def _count(counts: TokenCounts, row: Row, spec: JobSpec, tokenizer: Tokenizer, max_model_len: int) -> None:
    try:
        prepared = prepare_request(row, spec, 0, tokenizer, max_model_len)
    except (RunnerError, EngineError) as error:
        counts.failing[error.code] += 1
        return
    length, params = len(prepared.prompt_token_ids), prepared.params
    limit = min(token_limit(params.max_tokens), max_model_len - length)
    counts.prompts.append(length)
    counts.sequences += params.n
    counts.output_limit += params.n * limit
    counts.longest_limit = max(counts.longest_limit, limit)
    if len(counts.samples) < _SAMPLES:
        counts.samples.append(prepared.prompt_token_ids)


def context_limit(folder: Path, wanted: int | None) -> int:
    """Tokens of prompt and output together, as the engine will have it."""
    config: dict[str, Any] = read_config(folder)
    config = config.get("text_config") or config
    most = int(config.get("max_position_embeddings") or config.get("n_positions") or wanted or 2048)
    return min(wanted or most, most)


class Memory(NamedTuple):
    """Bytes. cache: the pages, taken as they are written to. log: on its server, if every answer uses its limit."""

    weights: int
    cache: int
    log: int


def predict_memory(spec: JobSpec, counts: TokenCounts, folder: Path) -> Memory:
    """Weights as they are loaded, the cache as configured, and the log."""
    log = (
        len(counts.prompts) + counts.failing.total()
    ) * _LOG_BYTES_PER_ROW + counts.output_limit * _LOG_BYTES_PER_TOKEN
    return Memory(_weight_bytes(folder, spec), spec.engine.kv_cache_memory, log)


def _weight_bytes(folder: Path, spec: JobSpec) -> int:
    from safetensors import safe_open

    from streamrunner.engine.weights import resolve_dtype

    size = 1 if spec.engine.quantization == "int8" else resolve_dtype(spec.engine.dtype).itemsize
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            total += sum(int(np.prod(file.get_slice(name).get_shape())) for name in file.keys())  # noqa: SIM118
    return total * size


def report(counts: TokenCounts, memory: Memory, time: dict[str, Any] | None) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "rows": len(counts.prompts) + counts.failing.total(),
        "runnable": len(counts.prompts),
        "failing": dict(counts.failing.most_common()),
        "over_limit": counts.failing[_OVER],
        "prompt_tokens": {
            "total": counts.prompt_tokens, "p50": counts.percentile(0.5), "p95": counts.percentile(0.95),
            "max": counts.percentile(1.0),
        },
        "output_tokens": {"at_most": counts.output_limit},
        "time": time,
        "memory_bytes": memory._asdict(),
    }  # fmt: skip
