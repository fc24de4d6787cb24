"""What of a request's sampling can only be read with the tokeniser: words as token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.tokenizer import Tokenizer


class Constraints(NamedTuple):
    """Shared by the choices of a request. bad_words: token ids of each spelling of each word."""

    bad_words: tuple[tuple[int, ...], ...] = ()


def compile_constraints(params: SamplingParams, tokenizer: Tokenizer) -> Constraints | None:
    """For `EngineCore.add_request`, by whoever has text; None if there is nothing to compile."""
    if not params.bad_words:
        return None
    spellings = [spelling for word in params.bad_words for spelling in (word.lstrip(), f" {word.lstrip()}")]
    tokens = [tuple(tokenizer.encode(spelling, add_special_tokens=False)) for spelling in spellings]
    return Constraints(tuple(dict.fromkeys(filter(None, tokens))))
