"""Tokens to text, one at a time: whole characters only, and the pieces add up to `Tokenizer.decode`, byte for byte.

    byte-level tokenisers     a token is bytes; what is no whole character yet waits for the next token
    sentencepiece-type ones   a token is a piece of text (the first one loses its blank), or one byte of a run `<0xE6>…`

Both take one table look-up per token. A run of byte tokens waits until it ends, because one bad byte in it changes how
all of it is read. A character that the end of the sequence cuts off becomes U+FFFD in `flush`, as in `decode`: one for
the character where tokens are bytes, one for each of its bytes in a run.
"""

from __future__ import annotations

from codecs import utf_8_decode
from typing import TYPE_CHECKING, Any, Protocol

from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrunner.engine.tokenizer import Tokenizer

# Decoders that look at one token at a time (and at whether it is the first), beside runs of byte tokens.
_PIECEWISE = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"})


class Detokenizer(Protocol):
    """Text of one sequence; special and unknown tokens have none."""

    def settle(self, token_id: int) -> str:
        """The text of earlier tokens that becomes certain because this one follows. `add` does it by itself."""

    def add(self, token_id: int) -> str:
        """The text that has become certain with this token; often its own, sometimes none yet."""

    def flush(self) -> str:
        """What is left when no token will follow."""


def detokenizers(tokenizer: Tokenizer) -> Callable[[], Detokenizer]:
    """A maker of detokenisers that share the tokeniser's tables. Raises EngineError (`model_unsupported`)."""
    steps = _flat(tokenizer.decoder)
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        table = _ByteTable(tokenizer)
        return lambda: _ByteDetokenizer(table)
    if kinds <= _PIECEWISE and all(map(_is_local, steps)):
        pieces = _PieceTable(tokenizer, has_runs="ByteFallback" in kinds)
        return lambda: _PieceDetokenizer(pieces)
    raise EngineError(
        "model_unsupported",
        f"tokenizer.json decodes with {' + '.join(sorted(kinds))}, which cannot be done token by token: supported are "
        f"ByteLevel alone, or any of {', '.join(sorted(_PIECEWISE))}",
        "model",
    )


def _flat(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _flat(part)]


def _is_local(step: Mapping[str, Any]) -> bool:
    """Whether a decoder step cannot see across tokens, also once they are fused."""
    if step["type"] == "Strip":
        return bool(step["start"] <= 1 and step["stop"] == 0)
    return step["type"] != "Replace" or len(step["pattern"].get("String", "")) == 1


# ── a token is bytes ─────────────────────────────────────────────────────────────────────────────────────────────────


class _ByteTable(dict[int, "str | bytes"]):
    """Token → its text where that is whole characters, else its bytes; filled as tokens come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_of = {character: byte for byte, character in enumerate(_byte_alphabet())}

    def __missing__(self, token_id: int) -> str | bytes:
        name = None if token_id in self._tokenizer.special_ids else self._tokenizer.token_name(token_id)
        data = b"" if name is None else self._bytes(name)
        try:
            piece: str | bytes = data.decode("utf-8")
        except UnicodeDecodeError:
            piece = data
        self[token_id] = piece
        return piece

    def _bytes(self, name: str) -> bytes:
        found = [self._byte_of.get(character, -1) for character in name]
        # An added token may hold characters that stand for no byte: then it is plain text.
        return name.encode("utf-8") if -1 in found else bytes(found)


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    stands = dict(zip(printable, printable, strict=True)) | {byte: 0x100 + place for place, byte in enumerate(others)}
    return [chr(stands[byte]) for byte in range(0x100)]


class _ByteDetokenizer:
    __slots__ = ("_cut", "_table")

    def __init__(self, table: _ByteTable) -> None:
        self._table = table
        self._cut = b""

    def settle(self, token_id: int) -> str:  # noqa: ARG002 - a cut character may go on in this very token
        return ""

    def add(self, token_id: int) -> str:
        piece = self._table[token_id]
        if isinstance(piece, str):
            if not self._cut:
                return piece
            piece = piece.encode("utf-8")
        data = self._cut + piece
        text, read = utf_8_decode(data, "replace", False)
        self._cut = data[read:]
        return text

    def flush(self) -> str:
        text, self._cut = self._cut.decode("utf-8", "replace"), b""
        return text


# ── a token is a piece of text ───────────────────────────────────────────────────────────────────────────────────────


class _PieceTable(dict[int, str]):
    """Token → its text when it is not the first; the tokeniser itself says so, asked once per token."""

    def __init__(self, tokenizer: Tokenizer, *, has_runs: bool) -> None:
        self._tokenizer = tokenizer
        names = (f"<0x{byte:02X}>" for byte in range(0x100)) if has_runs else ()
        self.byte_ids = frozenset(found for name in names if (found := tokenizer.token_id(name)) is not None)
        self._anchor = self._find_anchor()
        self._anchor_text = self.first([self._anchor])

    def first(self, token_ids: list[int]) -> str:
        """Text of tokens at the beginning of a sequence."""
        return self._tokenizer.decode(token_ids)

    def later(self, token_ids: list[int]) -> str:
        """Text of tokens behind others."""
        return self._tokenizer.decode([self._anchor, *token_ids])[len(self._anchor_text) :]

    def is_silent(self, token_id: int) -> bool:
        """Whether decoding passes over the token as if it was not there."""
        return token_id in self._tokenizer.special_ids or self._tokenizer.token_name(token_id) is None

    def __missing__(self, token_id: int) -> str:
        self[token_id] = self.later([token_id])
        return self[token_id]

    def _find_anchor(self) -> int:
        """A plain word, to stand in front of a token that is to be looked at."""
        for token_id in range(self._tokenizer.vocab_size):
            if self._is_word(token_id):
                return token_id
        raise EngineError("model_unsupported", "tokenizer.json has no token that is an ASCII word", "model")

    def _is_word(self, token_id: int) -> bool:
        text = "" if token_id in self.byte_ids else self._tokenizer.decode([token_id])
        return text.isascii() and text.isalpha()


class _PieceDetokenizer:
    __slots__ = ("_is_first", "_pieces", "_run")

    def __init__(self, pieces: _PieceTable) -> None:
        self._pieces = pieces
        self._is_first = True
        self._run: list[int] = []

    def settle(self, token_id: int) -> str:
        # A special token between two byte tokens does not end their run.
        ends_run = self._run and token_id not in self._pieces.byte_ids and not self._pieces.is_silent(token_id)
        return self.flush() if ends_run else ""

    def add(self, token_id: int) -> str:
        if token_id in self._pieces.byte_ids:
            self._run.append(token_id)
            return ""
        settled = self.settle(token_id) if self._run else ""
        if not self._is_first:
            return settled + self._pieces[token_id]
        if self._pieces.is_silent(token_id):
            return settled
        self._is_first = False
        return settled + self._pieces.first([token_id])

    def flush(self) -> str:
        if not self._run:
            return ""
        text = self._pieces.first(self._run) if self._is_first else self._pieces.later(self._run)
        self._is_first, self._run = False, []
        return text
