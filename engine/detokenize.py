"""Tokens to text, a few at a time: whole characters only, and the pieces add up to the whole byte for byte.

    token_ids   … prefix ][ pending ]          text of (prefix + pending) minus text of prefix, once it is certain
                  window start ┘                (it does not end in the middle of a character)

A short window before the new tokens is decoded along, because what a token looks like depends on its neighbour (the
blank in front of a word). Linear in the number of tokens: a window never grows beyond a few undecided ones.
A character that is cut off at the very end becomes U+FFFD when `flush` says that nothing more will come, as in
`Tokenizer.decode` of all tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamrunner.engine.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# Tokens of context in front of the new ones.
_CONTEXT = 4
# The longest run of tokens that can be one undecided character, with room: byte tokens come at most four to a
# character.
_MAX_UNDECIDED = 12


class Detokenizer:
    """Text of one output; special tokens are left out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0
        self._read = 0

    def add(self, token_id: int) -> str:
        """The text that has become certain with this token; often its own, sometimes none yet."""
        if token_id in self._tokenizer.special_ids:
            return ""
        self._ids.append(token_id)
        return self._advance(final=len(self._ids) - self._read > _MAX_UNDECIDED)

    def flush(self) -> str:
        """What is left when no token will follow."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        before = self._decode(self._context, self._read)
        after = self._decode(self._context, len(self._ids))
        if len(after) <= len(before) or (after.endswith(_REPLACEMENT) and not final):
            return ""
        self._read = len(self._ids)
        self._context = max(self._read - _CONTEXT, 0)
        # A window that begins inside a character would decode its start differently from now on.
        while self._context and self._decode(self._context, self._read).startswith(_REPLACEMENT):
            self._context -= 1
        return after[len(before) :]

    def _decode(self, start: int, end: int) -> str:
        return self._tokenizer.decode(self._ids[start:end]) if end > start else ""
