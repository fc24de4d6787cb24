"""What of a request's sampling can only be read with the tokeniser: words as token ids, and the form of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamrunner.engine.grammar import Grammar
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.tokenizer import Tokenizer


class Constraints(NamedTuple):
    """Shared by the choices of a request. bad_words: token ids of each spelling of each word.

    grammar: the form of the text, if it must have one.
    """

    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None


def compile_constraints(params: SamplingParams, tokenizer: Tokenizer) -> Constraints | None:
    """For `EngineCore.add_request`, by whoever has text; None if there is nothing to compile.

    Raises EngineError like `GrammarCompiler.compile`.
    """
    if not params.bad_words and params.structured_outputs is None:
        return None
    form = params.structured_outputs
    grammar = None if form is None else tokenizer.grammars.compile(form)
    spellings = [spelling for word in params.bad_words for spelling in (word.lstrip(), f" {word.lstrip()}")]
    tokens = [tuple(tokenizer.encode(spelling, add_special_tokens=False)) for spelling in spellings]
    return Constraints(tuple(dict.fromkeys(filter(None, tokens))), grammar)
