"""Texts of a given form: which tokens may come next, by llguidance.

    StructuredOutputsParams ──compile (once per form)──▶ Grammar ──start──▶ GrammarState of one sequence

Nothing is approximated: what llguidance cannot enforce is refused by name when a request is prepared.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import numpy as np

from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from streamrunner.engine.structured_params import StructuredOutputsParams
    from streamrunner.engine.tokenizer import Tokenizer

# A job may have one form for a million rows, or one for each.
_NUM_KEPT = 256
_MAX_MESSAGE = 300
_WORD_BITS = 64
# The others are limits that were met.
_ENDS = ("NoExtension", "EndOfSentence")
_REGEX_MARKS = frozenset("\\.+*?()|[]{}^$#&-~")


class Grammar:
    """A compiled form. Immutable: every sequence starts its own state."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def start(self, vocab_size: int) -> GrammarState:
        """The state before the first token. vocab_size: width of the logits."""
        return GrammarState(self._matcher.deep_copy(), vocab_size)


class GrammarState:
    """How far one sequence has got. `fault` says why it cannot go on, if it cannot."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self.fault: EngineError | None = None
        self._matcher = matcher
        self._vocab_size = vocab_size

    @property
    def is_complete(self) -> bool:
        """Whether the text is complete and nothing can be added to it."""
        return self.fault is None and self._matcher.stop_reason() in _ENDS

    def advance(self, token: int) -> None:
        """The sequence has one more token."""
        if self.fault is None and not self._matcher.consume_token(token):
            self._fail()

    def mask(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """[W] int64, a bit for each token that may come; none after a fault."""
        bits = np.zeros(-(-self._vocab_size // _WORD_BITS) * _WORD_BITS // 8, np.uint8)
        if self.fault is None:
            found = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)[: bits.size]
            bits[: found.size] = found
            if self._matcher.is_stopped() and not self.is_complete:
                self._fail()
                bits[:] = 0  # it would offer the end
        return bits.view(np.int64)

    def _fail(self) -> None:
        why = _first_line(self._matcher.get_error()) or self._matcher.stop_reason()
        self.fault = EngineError("structured_outputs_failed", f"the text cannot be continued in its form: {why}")


class GrammarCompiler:
    """Compiles forms for one tokenizer, and keeps the last ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compile = functools.lru_cache(_NUM_KEPT)(self._compiled)

    def compile(self, form: StructuredOutputsParams) -> Grammar:
        """Raises EngineError: `invalid_params` for what is no schema, regex or grammar, or says what cannot be enforced
        (the message names it); `model_unsupported` for a tokenizer whose tokens are no bytes.
        """
        return self._compile(form)

    def _compiled(self, form: StructuredOutputsParams) -> Grammar:
        from llguidance import LLMatcher

        try:
            matcher = LLMatcher(self._vocabulary, _definition(form), log_level=0)
        except ValueError as error:
            raise _refused(str(error)) from error
        if matcher.is_error():
            raise _refused(matcher.get_error())
        matcher.compute_bitmask()
        if matcher.is_stopped():
            raise _refused("no text has this form")
        return Grammar(matcher)

    @functools.cached_property
    def _vocabulary(self) -> LLTokenizer:
        """Takes 0.3 s for 50,000 tokens, so it is made when it is needed first."""
        from llguidance import LLTokenizer

        ends = list(self._tokenizer.eos_token_ids)
        if not ends:
            raise EngineError(
                "model_unsupported", "the model names no end-of-text token, so no form can end", "structured_outputs"
            )
        try:
            return LLTokenizer(self._tokenizer.to_json(), eos_token=ends)
        except ValueError as error:
            message = f"structured_outputs cannot read this model's tokenizer: {_first_line(str(error))}"
            raise EngineError("model_unsupported", message, "structured_outputs") from error


def _definition(form: StructuredOutputsParams) -> str:
    from llguidance import LLMatcher, grammar_from

    if form.json is not None or form.json_object:
        schema = json.loads(str(form.json)) if form.json is not None else {"type": "object"}
        return json.dumps({"grammars": [{"json_schema": _with_options(schema, form)}]})
    if form.regex is not None:
        return str(LLMatcher.grammar_from_regex(form.regex))
    if form.choice is not None:
        return str(LLMatcher.grammar_from_regex("|".join(map(_escaped, form.choice))))
    return str(grammar_from("grammar", str(form.grammar)))


def _with_options(schema: dict[str, object], form: StructuredOutputsParams) -> dict[str, object]:
    """The schema cannot set llguidance's own options, one of which is to ignore what it cannot enforce."""
    options: dict[str, object] = {"lenient": False, "coerce_one_of": False}
    if form.whitespace_pattern is not None:
        options["whitespace_pattern"] = form.whitespace_pattern
    elif form.disable_any_whitespace:
        options["whitespace_flexible"] = False
    return {**schema, "x-guidance": options}


def _escaped(text: str) -> str:
    """A regex for this text alone. One regex takes thousands of choices, which are too many rules for a grammar."""
    return "".join(_escaped_character(one) for one in text)


def _escaped_character(character: str) -> str:
    if character in _REGEX_MARKS:
        return f"\\{character}"
    return character if character.isprintable() else f"\\x{{{ord(character):x}}}"


def _refused(why: str) -> EngineError:
    return EngineError("invalid_params", f"structured_outputs: {_first_line(why)}", "structured_outputs")


def _first_line(message: str) -> str:
    """llguidance quotes its whole state."""
    return message.split("\n<state>")[0].strip()[:_MAX_MESSAGE]
