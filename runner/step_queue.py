"""The worker's end of the engine's queue of steps."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from streamrunner.engine.loop import LoopEnd
from streamrunner.runner.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from streamrunner.engine.loop import EngineLoop
    from streamrunner.engine.step import StepOutput


class StepQueue:
    """Takes steps in their order. wait_s: how long `next` may wait for the first."""

    def __init__(self, loop: EngineLoop, wait_s: float) -> None:
        self._loop = loop
        self._wait_s = wait_s

    def next(self, *, may_wait: bool) -> list[StepOutput]:
        """All steps there are by now. Raises RunnerError (`engine_died`) once there are none and will be none."""
        try:
            first = self._loop.outputs.get(timeout=self._wait_s if may_wait else 0)
        except queue.Empty:
            return []
        if isinstance(first, LoopEnd):
            raise RunnerError("engine_died", f"the engine stopped: {first.error or 'closed'}", ExitCode.INTERNAL)
        return [first, *self.drain()]

    def drain(self) -> list[StepOutput]:
        """What the engine has put out by now; its end, if it comes, is left to the next wait."""
        steps: list[StepOutput] = []
        while True:
            try:
                item = self._loop.outputs.get_nowait()
            except queue.Empty:
                return steps
            if isinstance(item, LoopEnd):
                self._loop.outputs.put(item)
                return steps
            steps.append(item)
