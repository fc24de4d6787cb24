"""Reads a call's prompts in a thread of its own, no further than the engine needs them, and sends them on.

The caller's iterator may be slow, endless, or fail: it holds up neither the engine nor who reads or closes the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.engine.constraints import compile_constraints
from streamrunner.engine.errors import EngineError
from streamrunner.engine.live_request import LiveRequest
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.prompt import PreparedPrompt, Prompt, PromptList, prepare_prompt

if TYPE_CHECKING:
    from streamrunner.engine.call import Call
    from streamrunner.engine.dispatcher import Dispatcher
    from streamrunner.engine.tokenizer import Tokenizer

ParamsGiven = SamplingParams | Iterable[SamplingParams] | None

# The lock is waited for like this too, for a call whose reader was garbage collected.
_POLL_S = 0.25


class FeedOptions(NamedTuple):
    """How prompts become requests. seed_of: the seed of the prompt with this index, where its params name none.

    numbers: request ids, never used twice in an engine.
    """

    chat_options: Mapping[str, Any]
    seed_of: Callable[[int], int]
    numbers: Iterator[int]


def pair_params(prompts: PromptList, given: ParamsGiven, default: SamplingParams) -> Iterator[tuple[Prompt, Any]]:
    """Each prompt with its params. Raises EngineError (`params_mismatch`) if both have lengths and these differ.

    Where one has none, params that run out before the prompts do raise it then; params that are left over are not read.
    """
    if given is None or isinstance(given, SamplingParams):
        params = default if given is None else given
        return ((prompt, params) for prompt in prompts.prompts)
    if isinstance(given, Sized) and prompts.length is not None and len(given) != prompts.length:
        raise _mismatch(f"{prompts.length} prompts", f"{len(given)} sampling params")
    return _zip_params(prompts.prompts, iter(given))


def _zip_params(prompts: Iterator[Prompt], params: Iterator[SamplingParams]) -> Iterator[tuple[Prompt, Any]]:
    for index, prompt in enumerate(prompts):
        own = next(params, None)
        if own is None:
            raise _mismatch("more prompts", f"{index} sampling params")
        yield prompt, own


def _mismatch(prompts: str, params: str) -> EngineError:
    message = f"there are {prompts} and {params}: give one for each prompt, or one SamplingParams for all"
    return EngineError("params_mismatch", message, "sampling_params")


class Feeder:
    """One call's thread from prompts to the engine."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        call: Call,
        pairs: Iterator[tuple[Prompt, Any]],
        tokenizer: Tokenizer,
        options: FeedOptions,
    ) -> None:
        self._dispatcher = dispatcher
        self._call = call
        self._pairs = pairs
        self._tokenizer = tokenizer
        self._options = options

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._run, name="engine-feed", daemon=True).start()

    def _run(self) -> None:
        fault: BaseException | None = None
        try:
            index = 0
            while self._wait_for_room():
                pair = next(self._pairs, None)
                if pair is None:
                    break
                self._feed(index, *pair)
                index += 1
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever reads the call
            fault = error
        with self._dispatcher.lock:
            self._call.finish_feeding(fault)

    def _wait_for_room(self) -> bool:
        with self._dispatcher.lock:
            while not (self._call.closed or self._call.abandoned or self._call.has_room):
                self._call.roomy.wait(timeout=_POLL_S)
            return not (self._call.closed or self._call.abandoned)

    def _feed(self, index: int, prompt: Prompt, params: Any) -> None:
        request_id = str(next(self._options.numbers))
        try:
            params = self._seeded(index, params)
            prepared = prepare_prompt(prompt, self._tokenizer, self._options.chat_options)
            constraints = compile_constraints(params, self._tokenizer)
        except EngineError as error:
            self._refuse(LiveRequest(request_id, index, _shown(prompt), getattr(params, "n", 1)), error)
            return
        request = LiveRequest(request_id, index, prepared, params.n)
        with self._dispatcher.lock:
            if not self._call.closed:
                self._dispatcher.submit(self._call, request, prepared.token_ids, params, constraints)

    def _seeded(self, index: int, params: Any) -> SamplingParams:
        if not isinstance(params, SamplingParams):
            raise EngineError("invalid_params", f"params are {type(params).__name__}: give SamplingParams")
        return params if params.seed is not None else replace(params, seed=self._options.seed_of(index))

    def _refuse(self, request: LiveRequest, error: EngineError) -> None:
        request.end("error", error)
        with self._dispatcher.lock:
            if not self._call.closed:
                self._call.add(request)


def _shown(prompt: Any) -> PreparedPrompt:
    """What can be said of a prompt that could not be read."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return PreparedPrompt(text if isinstance(text, str) else None, [])
