"""How fast this machine runs a model: from the last job that it finished, else measured in a few seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.pace import Pace, StepCost

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.runner.dry_run import TokenCounts
    from streamrunner.runner.spec import JobSpec

_MEASURE_S = 10.0
_OUTPUT_TOKENS = 24
_MAX_PROMPT = 256
_LEAST_TOKENS = 500
_JOBS = 20


class LastJob(NamedTuple):
    """A finished job of the same model: tokens per answer, and output tokens a second with its start in it."""

    job_id: str
    tokens_per_row: float
    output_tokens_per_s: float

    def predict(self, counts: TokenCounts) -> dict[str, Any]:
        """Seconds, if answers are as long as that job's and come as fast."""
        expected = min(self.tokens_per_row * len(counts.prompts), float(counts.output_limit))
        return {
            "source": "last job", "job": self.job_id, "output_tokens_per_s": round(self.output_tokens_per_s, 1),
            "expected_output_tokens": round(expected), "expected_s": round(expected / self.output_tokens_per_s, 3),
            "at_most_s": round(counts.output_limit / self.output_tokens_per_s, 3),
        }  # fmt: skip


class Measured(NamedTuple):
    """What engine steps cost here, and how large they may be."""

    cost: StepCost
    max_num_seqs: int
    batched_tokens: int
    seconds: float

    def predict(self, counts: TokenCounts) -> dict[str, Any]:
        """Seconds if every answer uses its limit: how long answers are nobody knows before they are made."""
        most = min(self.max_num_seqs, counts.sequences)
        output, prompt = counts.output_limit, counts.prompt_tokens
        steps = max(output / max(most, 1), (output + prompt) / self.batched_tokens, float(counts.longest_limit))
        rate = 1000 * most / self.cost.of(1, most, 0) if most else 0.0
        return {
            "source": "measured", "measured_s": round(self.seconds, 1), "output_tokens_per_s": round(rate, 1),
            "expected_output_tokens": None, "expected_s": None,
            "at_most_s": round(self.cost.of(steps, output, prompt) / 1000, 3),
        }  # fmt: skip


def last_job(reader: Any, model: str) -> LastJob | None:
    """The newest finished job of this model on a server; `reader` makes short reads."""
    from streamrunner.runner.place import PREFIX
    from streamrunner.sinks.directory import JobDirectory
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.wire import parse_log_entry

    directory = JobDirectory(reader, PREFIX)
    for pointer in directory.jobs()[: -_JOBS - 1 : -1]:
        meta = directory.meta(pointer.job_id)
        tokens, completed = int(meta.get("completion_tokens", 0)), int(meta.get("completed", 0))
        if meta.get("status") != "completed" or tokens < _LEAST_TOKENS or "started" not in meta:
            continue
        [first] = reader.xrange(JobKeys(pointer.job_id, PREFIX).log, count=1)
        if parse_log_entry(*first).data["spec"].get("model") == model:
            seconds = max((int(meta["ended"]) - int(meta["started"])) / 1000, 0.001)
            return LastJob(pointer.job_id, tokens / completed, tokens / seconds)
    return None


def measure(spec: JobSpec, folder: Path, base: Path, samples: list[list[int]]) -> Measured:
    """Load the engine and run a few of the job's own prompts. base: what relative paths of the spec start from."""
    from streamrunner.engine.core import EngineCore
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.weights import load_model
    from streamrunner.runner.engine import engine_config

    config = engine_config(spec.engine, base)
    core = EngineCore(load_model(folder, config), config)
    params = SamplingParams(temperature=0.0, max_tokens=_OUTPUT_TOKENS, ignore_eos=True)
    room = core.max_model_len - _OUTPUT_TOKENS
    for number, prompt in enumerate(samples):
        core.add_request(str(number), prompt[: max(min(_MAX_PROMPT, room), 1)], params)
    pace, began, first = Pace(), time.monotonic(), True
    while core.has_unfinished() and time.monotonic() - began < _MEASURE_S:
        step = core.step()
        # The first step compiles loops.
        if not first:
            pace.take(sum(len(one.token_ids) for one in step.outputs), step.num_prompt_tokens, step.step_ms)
        first = False
    cost = pace.cost() or StepCost(0.0, 0.0, 0.0)
    return Measured(cost, config.max_num_seqs, config.batched_tokens, time.monotonic() - began)
