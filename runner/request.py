"""From a row to what the engine runs: prompt tokens and the sampling of this row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamrunner.engine.constraints import compile_constraints
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.seed import request_seed
from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from streamrunner.engine.constraints import Constraints
    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.runner.rows import Row
    from streamrunner.runner.spec import JobSpec


class PreparedRequest(NamedTuple):
    """One row, ready for the engine; its choices share it all."""

    prompt_token_ids: list[int]
    params: SamplingParams
    constraints: Constraints | None


def prepare_request(
    row: Row, spec: JobSpec, job_seed: int, tokenizer: Tokenizer, max_model_len: int
) -> PreparedRequest:
    """Render, tokenise and check one row.

    Raises RunnerError (`context_length_exceeded`, `empty_prompt`) or EngineError (`invalid_params`,
    `chat_template_error`).
    """
    params = row_params(row, spec, job_seed)
    token_ids = _prompt_tokens(row, tokenizer)
    if not token_ids:
        raise RunnerError("empty_prompt", f"row {row.index} ({row.custom_id}) has no tokens: give it some text")
    if len(token_ids) > max_model_len - (params.max_tokens != 0):
        raise RunnerError(
            "context_length_exceeded",
            f"row {row.index} ({row.custom_id}) has {len(token_ids)} prompt tokens, the limit is {max_model_len} "
            "(engine.max_model_len) with room for at least one output token: shorten the row or raise the limit",
        )
    return PreparedRequest(token_ids, params, compile_constraints(params, tokenizer))


def row_params(row: Row, spec: JobSpec, job_seed: int) -> SamplingParams:
    """The job's sampling with the row's own settings over it, and a seed that only the job and the row decide."""
    settings = {**dict(spec.sampling), **row.overrides}
    if "seed" not in row.overrides:
        settings["seed"] = request_seed(job_seed, row.index)
    return SamplingParams(**settings)


def _prompt_tokens(row: Row, tokenizer: Tokenizer) -> list[int]:
    if row.kind == "chat":
        # The template writes begin-of-text itself where the model wants it.
        text = tokenizer.apply_chat_template(row.messages, row.tools, **row.chat_options)
        return tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.encode(row.prompt)
