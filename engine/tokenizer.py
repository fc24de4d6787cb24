"""Text to tokens and back, and chats to text, without importing transformers (2 s at every start)."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tokenizers

from streamrunner.engine.chat_template import ChatTemplates, cut_at_mark, mark_end
from streamrunner.engine.errors import EngineError
from streamrunner.engine.grammar import GrammarCompiler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from streamrunner.engine.chat_template import Message

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of a model folder (`tokenizer.json` and its config files).

    special_tokens: named ones (`eos_token` …), which are special whatever tokenizer.json says of them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        templates: ChatTemplates | None = None,
    ) -> None:
        self._backend = backend
        self._special_tokens = dict(special_tokens or {})
        self._templates = templates or ChatTemplates({}, self._special_tokens)
        self.eos_token_ids: tuple[int, ...] = ()
        _mark_special(backend, self._special_tokens.values())

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Raises EngineError (`model_unsupported`) if the folder has no tokenizer.json."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise EngineError(
                "model_unsupported",
                f"{folder} has no tokenizer.json: save the model with a fast tokenizer "
                "(AutoTokenizer.from_pretrained(…).save_pretrained(…))",
            )
        config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
        named = {name: text for name in _NAMED_TOKENS if (text := _token_text(config.get(name))) is not None}
        backend = tokenizers.Tokenizer.from_file(str(path))
        # The file may carry the settings of whoever trained it; prompts are never cut or padded.
        backend.no_truncation()
        backend.no_padding()
        tokenizer = cls(backend, named, ChatTemplates.load(folder, config, named))
        tokenizer.eos_token_ids = tokenizer._find_eos(folder)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Tokens the tokenizer knows, added ones included."""
        return int(self._backend.get_vocab_size())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with the special tokens (begin-of-text) that tokenizer.json adds, unless told otherwise.

        A text that begins with begin-of-text itself, as rendered chats do, does not get a second one.
        Raises EngineError (`invalid_prompt`) for half a character (a lone surrogate).
        """
        try:
            token_ids = list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except TypeError as error:
            raise _unreadable(text) from error
        bos = self._special_tokens.get("bos_token")
        if not add_special_tokens or bos is None or not text.startswith(bos):
            return token_ids
        return token_ids[1:] if token_ids[:2] == [self.token_id(bos)] * 2 else token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens; a cut character becomes U+FFFD."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))

    def token(self, token_id: int) -> str:
        """One token as text, special ones by name."""
        return str(self._backend.decode([token_id], skip_special_tokens=False))

    def token_id(self, name: str) -> int | None:
        """The token that the vocabulary calls `name`."""
        found: int | None = self._backend.token_to_id(name)
        return found

    def token_name(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None for an id that no token has."""
        found: str | None = self._backend.id_to_token(token_id)
        return found

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiles the forms that texts of this tokenizer may be bound to."""
        return GrammarCompiler(self)

    def to_json(self) -> str:
        """The tokenizer as it is now, as tokenizer.json would say it."""
        return str(self._backend.to_str())

    @property
    def decoder(self) -> Mapping[str, Any] | None:
        """The `decoder` section of tokenizer.json."""
        decoder: Any = self._backend.decoder
        return None if decoder is None else dict(json.loads(decoder.__getstate__()))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that never show in text."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """The chat as the model's prompt; encode it without special tokens. Raises EngineError (`chat_template_error`).

        tools: JSON schemas. continue_final_message: end behind the last message's text, not behind the message.
        chat_template: used instead of the model's. variables: whatever else it reads (`enable_thinking` …).
        """
        if continue_final_message and add_generation_prompt:
            raise EngineError(
                "chat_template_error",
                "continue_final_message goes on with the last message, add_generation_prompt begins a new one: set one",
                "continue_final_message",
            )
        text = self._templates.render(
            mark_end(messages) if continue_final_message else messages, tools, documents,
            add_generation_prompt=add_generation_prompt, variables=variables, source=chat_template,
        )  # fmt: skip
        return cut_at_mark(text) if continue_final_message else text

    def _find_eos(self, folder: Path) -> tuple[int, ...]:
        """Those of generation_config.json, else config.json, and the tokenizer's own, which fine-tuned models change
        without the others.
        """
        found: list[int] = []
        for name in ("generation_config.json", "config.json"):
            ids = _read_json(folder / name).get("eos_token_id")
            if ids is not None:
                found = [ids] if isinstance(ids, int) else list(ids)
                break
        own = self.token_id(self._special_tokens.get("eos_token", ""))
        return tuple(dict.fromkeys(found if own is None else [*found, own]))


def _mark_special(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    known = [text for text in texts if text not in special and backend.token_to_id(text) is not None]
    backend.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in known])


def _unreadable(text: Any) -> EngineError:
    if not isinstance(text, str):
        return EngineError("invalid_prompt", f"the prompt is {type(text).__name__}, it must be text", "prompt")
    at = next(place for place, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    return EngineError("invalid_prompt", f"the prompt has half a character (a lone surrogate) at {at}", "prompt")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise EngineError("model_unsupported", f"{path} is no JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _token_text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
