"""Text to tokens and back, and chats to text, without importing transformers (2 s at every start).

Chat templates are rendered by the same rules as `apply_chat_template` of transformers: Jinja in a sandbox, blocks
trimmed, `tojson` without HTML escapes, `raise_exception` and `strftime_now` for templates that use them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import tokenizers

from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from jinja2 import Template

Message = Mapping[str, Any]


class Tokenizer:
    """The tokenizer of a model folder (`tokenizer.json` and its config files)."""

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, Any], template: str | None) -> None:
        self._backend = backend
        self._config = config
        self._template_source = template
        self.eos_token_ids: tuple[int, ...] = ()

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
        config = _read_json(folder / "tokenizer_config.json")
        template_file = folder / "chat_template.jinja"
        template = template_file.read_text("utf-8") if template_file.exists() else _default_template(config)
        tokenizer = cls(tokenizers.Tokenizer.from_file(str(path)), config, template)
        tokenizer.eos_token_ids = tokenizer._find_eos(folder)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Tokens the tokenizer knows, added ones included."""
        return int(self._backend.get_vocab_size())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with the special tokens (begin-of-text) that tokenizer.json adds, unless told otherwise."""
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

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
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The chat as the model's prompt. Raises EngineError (`chat_template_error`)."""
        from jinja2 import TemplateError

        names = {
            name: _token_text(self._config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{name: text for name, text in names.items() if text is not None},
                **variables,
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise EngineError(
                "chat_template_error", f"the model's chat template refuses these messages: {error}", "messages"
            ) from error

    @cached_property
    def _template(self) -> Template:
        if self._template_source is None:
            raise EngineError(
                "chat_template_error",
                "this model has no chat template: give rows a `prompt`, or add chat_template.jinja to its folder",
            )
        template: Template = _environment().from_string(self._template_source)
        return template

    def _find_eos(self, folder: Path) -> tuple[int, ...]:
        """generation_config.json knows best (several ids), then config.json, then the tokenizer's own eos_token."""
        for name in ("generation_config.json", "config.json"):
            ids = _read_json(folder / name).get("eos_token_id")
            if ids is not None:
                return (ids,) if isinstance(ids, int) else tuple(ids)
        text = _token_text(self._config.get("eos_token"))
        found = self._backend.token_to_id(text) if text else None
        return () if found is None else (found,)


def _environment() -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005 - as transformers does
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes HTML, which a prompt must not be.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise EngineError("model_unsupported", f"{path} is no JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _default_template(config: Mapping[str, Any]) -> str | None:
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones, as in older tokenizers
        return next((one["template"] for one in template if one["name"] == "default"), None)
    return template if isinstance(template, str) else None


def _token_text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
