"""From a job's `model` and `engine` sections to a running engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.loop import EngineLoop
from streamrunner.engine.lora_config import resolve_adapter
from streamrunner.engine.synthetic import SyntheticCore, SyntheticModel
from streamrunner.engine.synthetic_tokenizer import synthetic_tokenizer
from streamrunner.runner.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis

    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.lease import LeaseKeeper
    from streamrunner.runner.spec import EngineSpec
    from streamrunner.sinks.log import JobLog


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine in its own thread, with the tokenizer of its model."""

    loop: EngineLoop
    tokenizer: Tokenizer
    max_model_len: int

    def worker(
        self,
        job: JobContext,
        log: JobLog,
        client: redis.Redis,
        lease: LeaseKeeper,
        should_stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> Worker:
        """A worker that runs this job on it."""
        return Worker(
            job, log=log, client=client, lease=lease, loop=self.loop, tokenizer=self.tokenizer,
            max_model_len=self.max_model_len, should_stop=should_stop, say=say,
        )  # fmt: skip

    def close(self) -> None:
        """Stop after the current step."""
        self.loop.close()


def start_engine(job: JobContext, cache_dir: Path, say: Callable[[str], None]) -> RunningEngine:
    """Convert if need be, load, and start the step loop. Raises EngineError."""
    synthetic = SyntheticModel.of(job.spec.model)
    return _start_model(job, cache_dir, say) if synthetic is None else _start_synthetic(synthetic, job.spec.engine)


def _start_model(job: JobContext, cache_dir: Path, say: Callable[[str], None]) -> RunningEngine:
    # Here, since torch takes seconds to import and a synthetic engine needs none of it.
    from streamrunner.engine.convert import is_converted, resolve_model
    from streamrunner.engine.core import EngineCore
    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.engine.weights import load_model

    name = job.spec.model
    if not is_converted(name, cache_dir, job.base):
        say(f"converting {name} (once)")
    files = resolve_model(name, cache_dir, job.base)
    say(f"loading {name}")
    config = engine_config(job.spec.engine, job.base)
    tokenizer = Tokenizer.load(files.path)
    core = EngineCore(load_model(files.path, config), config, tokenizer.eos_token_ids)
    return _running(EngineLoop(core), tokenizer, core.max_model_len)


def _start_synthetic(model: SyntheticModel, spec: EngineSpec) -> RunningEngine:
    core = SyntheticCore(model, spec.max_num_seqs, spec.max_model_len)
    return _running(EngineLoop(core), synthetic_tokenizer(), core.max_model_len)


def _running(loop: EngineLoop, tokenizer: Tokenizer, max_model_len: int) -> RunningEngine:
    loop.start()
    return RunningEngine(loop, tokenizer, max_model_len)


def engine_config(spec: EngineSpec, base: Path) -> EngineConfig:
    """The job's engine section in the engine's own terms; relative paths start from `base`."""
    return EngineConfig(
        device=spec.device,
        dtype=spec.dtype,
        max_model_len=spec.max_model_len,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        kv_cache_memory_bytes=spec.kv_cache_memory,
        kv_cache_dtype=spec.kv_cache_dtype,
        quantization=spec.quantization,
        enable_prefix_caching=spec.enable_prefix_caching,
        deterministic=spec.deterministic,
        lora_path=None if spec.lora_path is None else str(resolve_adapter(spec.lora_path, base)),
    )
