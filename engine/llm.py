"""`LLM`: a model in this process, for prompts by the thousand. vLLM's names, and results while they are made.

with LLM("smollm2-135m-instruct") as llm:
    for output in llm.generate_stream(prompts, SamplingParams(max_tokens=64)):
        print(output.index, output.outputs[0].delta_text)
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import AsyncIterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from streamrunner.engine.async_prompts import AsyncPrompts
from streamrunner.engine.call import Call, CallOptions
from streamrunner.engine.convert import default_cache_dir, resolve_model
from streamrunner.engine.core import EngineCore
from streamrunner.engine.default_params import default_params
from streamrunner.engine.dispatcher import Dispatcher
from streamrunner.engine.engine_options import engine_config
from streamrunner.engine.errors import EngineError
from streamrunner.engine.feeder import Feeder, FeedOptions, ParamsGiven, pair_params
from streamrunner.engine.loop import EngineLoop
from streamrunner.engine.progress import progress_bar
from streamrunner.engine.prompt import PromptList, prompt_list
from streamrunner.engine.seed import request_seed
from streamrunner.engine.stream import AsyncOutputStream, OutputStream
from streamrunner.engine.tokenizer import Tokenizer
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from streamrunner.engine.engine_metrics import EngineMetrics
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.prompt import Message, Prompt, Prompts
    from streamrunner.engine.request_output import RequestOutput

# Finished results that may wait for a slow reader before the next prompts are read: memory stays flat.
MAX_UNREAD = 4096
# Sequences that wait in the engine beyond those that run, so that it never starves.
_AHEAD_SHARE, _AHEAD = 4, 16


class LLM:
    """One model, loaded once; its engine steps in a thread of its own. Calls may come from any thread, at once too.

    model: as in job.yaml (hub id, folder of safetensors, .gguf file, installed model package). seed: decides the noise
    of requests that name none. cache_dir: where converted models are kept. engine_options: the fields of EngineConfig.
    Raises EngineError (`model_not_found`, `model_unsupported`, `invalid_config`, `kv_cache_too_small`).
    """

    def __init__(
        self, model: str | Path, *, seed: int = 0, cache_dir: str | Path | None = None, **engine_options: Any
    ) -> None:
        config = engine_config(engine_options)
        files = resolve_model(str(model), Path(cache_dir) if cache_dir is not None else default_cache_dir())
        self._tokenizer = Tokenizer.load(files.path)
        self._default_params = default_params(files.path)
        self._core = EngineCore(load_model(files.path, config), config, self._tokenizer.eos_token_ids)
        self._dispatcher = Dispatcher(EngineLoop(self._core), self._tokenizer)
        self._seed = seed
        self._max_sequences = config.max_num_seqs + config.max_num_seqs // _AHEAD_SHARE + _AHEAD
        self._request_numbers, self._call_numbers = itertools.count(), itertools.count()
        self._closer = weakref.finalize(self, self._dispatcher.close)
        self._dispatcher.start()

    @property
    def max_model_len(self) -> int:
        """Tokens of one sequence, prompt and output together."""
        return self._core.max_model_len

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: `encode`, `decode`, `apply_chat_template`."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What a call without sampling_params uses: the model's generation_config.json, and the rest of the context."""
        return self._default_params

    def get_metrics(self) -> EngineMetrics:
        """What the engine has done so far; a copy."""
        with self._dispatcher.lock:
            return replace(self._dispatcher.metrics)

    # ── all at once ─────────────────────────────────────────────────────────────────────────────────────────────────

    def generate(
        self, prompts: Prompts, sampling_params: ParamsGiven = None, *, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """All results as a list in the order of the prompts, one for each.

        prompts: one or many (see `prompt.py`). sampling_params: one for all, or one for each prompt; without any, what
        the model's makers recommend (`get_default_sampling_params`). use_tqdm: progress on stderr, if that is a
        terminal. A prompt that cannot run fails alone: its result has `error`, and choices with finish_reason "error".
        Raises EngineError (`params_mismatch`, before work starts if both have lengths, `invalid_prompt` for what is
        neither a prompt nor an iterable, `engine_died`), and what an iterator raises.
        """
        return self._collect(prompt_list(prompts), sampling_params, {}, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Iterable[Sequence[Message]],
        sampling_params: ParamsGiven = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Like `generate`, for one chat or many, through the model's chat template.

        chat_template: used instead of the model's. continue_final_message: the output goes on with the last message
        (set add_generation_prompt to False). tools: JSON schemas. chat_template_kwargs: what else the template reads.
        """
        options = {
            "tools": tools,
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **(chat_template_kwargs or {}),
        }
        return self._collect(prompt_list(messages), sampling_params, options, use_tqdm=use_tqdm)

    def _collect(
        self, prompts: PromptList, params: ParamsGiven, chat_options: Mapping[str, Any], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        call = self._open(prompts, params, chat_options, ordered=False, every_n=None)
        bar = progress_bar(prompts.length, shown=use_tqdm)
        with OutputStream(self._dispatcher, call, self) as stream, bar as count:
            for output in stream:
                outputs.append(output)
                count(output)
        outputs.sort(key=lambda output: output.index)
        _warn_of_failures(outputs)
        return outputs

    # ── while it is made ────────────────────────────────────────────────────────────────────────────────────────────

    def generate_stream(
        self,
        prompts: Prompts,
        sampling_params: ParamsGiven = None,
        *,
        ordered: bool = False,
        every_n: int | None = 1,
        max_unread: int = MAX_UNREAD,
        **chat_options: Any,
    ) -> OutputStream:
        """Results as they come; work starts at once, and prompts are read from an iterator only as it gets on.

        Each item is a RequestOutput with all so far and the delta since the item before; `finished` marks the last one
        of a prompt. ordered: all items of a prompt before those of the next one; what is made meanwhile waits, merged.
        every_n: an item after so many new tokens of a choice; None: finished results only. max_unread: finished results
        that may wait for the reader before no further prompts are read; the engine is never made to wait within a step.
        chat_options: arguments of `Tokenizer.apply_chat_template`, for prompts that are chats.
        Raises EngineError like `generate`, at once or where it happens.
        """
        call = self._open(
            prompt_list(prompts), sampling_params, chat_options, ordered=ordered, every_n=every_n, max_unread=max_unread
        )
        return OutputStream(self._dispatcher, call, self)

    def agenerate_stream(
        self,
        prompts: Prompts | AsyncIterable[Prompt],
        sampling_params: ParamsGiven = None,
        *,
        ordered: bool = False,
        every_n: int | None = 1,
        max_unread: int = MAX_UNREAD,
        **chat_options: Any,
    ) -> AsyncOutputStream:
        """`generate_stream` for `async for`; many may run at once, and share the engine's batches.

        prompts: an async iterable too, which is read on the running event loop.
        """
        given = AsyncPrompts(prompts) if isinstance(prompts, AsyncIterable) else prompts
        call = self._open(
            prompt_list(given), sampling_params, chat_options, ordered=ordered, every_n=every_n, max_unread=max_unread
        )
        return AsyncOutputStream(self._dispatcher, call, self)

    def abort(self, request_id: str | Sequence[str]) -> None:
        """End requests with what they have, finish_reason "abort". Unknown and finished ones are no error."""
        with self._dispatcher.lock:
            for one in [request_id] if isinstance(request_id, str) else request_id:
                self._dispatcher.abort(one)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop after the current step; streams that are open end with EngineError (`engine_closed`)."""
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _open(
        self,
        prompts: PromptList,
        params: ParamsGiven,
        chat_options: Mapping[str, Any],
        *,
        ordered: bool,
        every_n: int | None,
        max_unread: int = MAX_UNREAD,
    ) -> Call:
        for name, value in (("every_n", every_n), ("max_unread", max_unread)):
            if value is not None and value < 1:
                raise EngineError("invalid_params", f"{name} is {value}, it must be at least 1", name)
        pairs = pair_params(prompts, params, self._default_params)
        call = Call(self._dispatcher.lock, CallOptions(ordered, every_n, self._max_sequences, max_unread))
        with self._dispatcher.lock:
            self._dispatcher.open(call)
        seed_of = partial(request_seed, self._seed, call=next(self._call_numbers))
        options = FeedOptions(chat_options, seed_of, self._request_numbers)
        Feeder(self._dispatcher, call, pairs, self._tokenizer, options).start()
        return call


def _warn_of_failures(outputs: Sequence[RequestOutput]) -> None:
    failed = [output for output in outputs if output.error is not None]
    if failed:
        first = f"the first is prompt {failed[0].index}: {failed[0].error}"
        logging.getLogger(__name__).warning("%d of %d prompts failed; %s", len(failed), len(outputs), first)
