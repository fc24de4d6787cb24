"""What an engine has done since it began, summed over its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamrunner.engine.step import StepOutput


@dataclass(slots=True)
class EngineMetrics:
    """Totals, and the state at the end of the last step (num_running, num_waiting, kv_cache_usage: 0 to 1).

    num_prompt_tokens: computed. num_cached_tokens: found in the prefix cache instead. num_preemptions: sequences that
    gave their pages back and were computed again. queue_wait_ms: how long the engine waited for its reader.
    """

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    step_ms: float = 0.0
    queue_wait_ms: float = 0.0

    def take(self, step: StepOutput, queue_wait_ms: float) -> None:
        """Add one step."""
        self.num_steps += step.num_batched_tokens > 0
        self.num_prompt_tokens += step.num_prompt_tokens
        self.num_cached_tokens += step.num_cached_tokens
        self.num_generation_tokens += sum(len(one.token_ids) for one in step.outputs)
        self.num_preemptions = max(self.num_preemptions, step.num_preemptions)
        self.num_running, self.num_waiting = step.num_running, step.num_waiting
        self.kv_cache_usage = step.kv_cache_usage
        self.step_ms += step.step_ms
        self.queue_wait_ms = queue_wait_ms
