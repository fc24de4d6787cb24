"""Chats to text by the model's Jinja template, rendered as transformers' `apply_chat_template` does.

The template comes with the model and is not trusted: it runs in Jinja's sandbox, and sees plain JSON values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from jinja2 import Environment, Template
    from jinja2.parser import Parser

Message = Mapping[str, Any]

# A private-use character, and a blank that shows whether a template trims.
_MARK = "\ue0ce "
# Kinds of content parts that no text model reads; a template would drop them, or write a placeholder.
_MEDIA = ("image", "audio", "video", "file")
# A message's reasoning under older names; templates read the first one, those of gpt-oss `thinking`.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplates:
    """The templates of a model by name: most have one, `default`; some another for chats with tools, `tool_use`.

    special_tokens: what templates know as bos_token, eos_token and so on.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = sources
        self._special_tokens = special_tokens
        self._compiled: dict[str, Template] = {}

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> ChatTemplates:
        """From the files beside tokenizer.json; chat_template.jinja comes before tokenizer_config.json."""
        sources = _named(config.get("chat_template"))
        file = folder / "chat_template.jinja"
        if file.exists():
            sources["default"] = file.read_text("utf-8")
        for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            sources[file.stem] = file.read_text("utf-8")
        return cls(sources, special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        source: str | None = None,
    ) -> str:
        """Raises EngineError (`chat_template_error`) with the template's own words if it refuses the chat.

        source: a template to use instead of the model's.
        """
        from jinja2 import TemplateError

        if not messages:
            raise _refused("it has no messages")
        _check_parts(messages)
        try:
            template = self._template("default" if tools is None else "tool_use", source)
            known = {"tools": _plain(tools), "documents": _plain(documents)}
            known |= {"add_generation_prompt": add_generation_prompt, **self._special_tokens, **_plain(variables)}
            return _render(template, [_message(one) for one in messages], known)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise _refused(f"{error}") from error
        except RecursionError as error:
            raise _refused("it is nested too deeply") from error

    def _template(self, name: str, source: str | None) -> Template:
        if source is not None:
            return self._compile(source)
        name = name if name in self._sources else "default"
        if name not in self._sources:
            raise EngineError(
                "chat_template_error",
                "this model has no chat template: give rows a `prompt`, or add chat_template.jinja to its folder",
            )
        return self._compile(self._sources[name])

    def _compile(self, source: str) -> Template:
        if source not in self._compiled:
            self._compiled[source] = self._environment.from_string(source)
        return self._compiled[source]

    @cached_property
    def _environment(self) -> Environment:
        return _environment()


def mark_end(messages: Sequence[Message]) -> list[Message]:
    """The chat with a mark behind the text of its last message: where the model is to go on is where that is rendered.

    Raises EngineError (`chat_template_error`) if there is no text.
    """
    if not messages:
        raise _refused("it has no messages")
    *others, last = messages
    content = last.get("content")
    if isinstance(content, str) and content.strip():
        return [*others, {**last, "content": content + _MARK}]
    parts = list(content) if isinstance(content, Sequence) and not isinstance(content, str) else []
    for place in reversed(range(len(parts))):
        if isinstance(parts[place], Mapping) and "text" in parts[place]:
            parts[place] = {**parts[place], "text": f"{parts[place]['text']}{_MARK}"}
            return [*others, {**last, "content": parts}]
    raise _refused("its last message has no text to continue")


def cut_at_mark(rendered: str) -> str:
    """What stands before the mark; without blanks at its end if the template trims messages (it took the mark's own).

    Raises EngineError (`chat_template_error`) if the template does not show the text.
    """
    at = rendered.rfind(_MARK.strip())
    if at < 0:
        raise _refused("it does not show the text of the last message, which was to be continued")
    return rendered[:at] if rendered.startswith(_MARK, at) else rendered[:at].rstrip()


def _render(template: Template, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
    """Templates that know text only would print a list of parts as Python does: they get its text instead."""
    lists = [one["content"] for one in messages if isinstance(one.get("content"), list)]
    if not lists:
        return template.render(messages=messages, **variables)
    try:
        text = template.render(messages=messages, **variables)
        if not any(str(parts) in text for parts in lists):
            return text
    except (TypeError, AttributeError):
        pass
    return template.render(messages=[_flat(one) for one in messages], **variables)


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list) or not all(isinstance(part, dict) and "text" in part for part in content):
        return message
    return {**message, "content": "\n".join(str(part["text"]) for part in content)}


def _check_parts(messages: Sequence[Message]) -> None:
    for place, message in enumerate(messages):
        content = message.get("content")
        for part in content if isinstance(content, (list, tuple)) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and kind.removeprefix("input_").startswith(_MEDIA):
                raise EngineError(
                    "chat_template_error",
                    f"messages[{place}] has an {kind} part: the engine reads text only",
                    "messages",
                )


def _refused(why: str) -> EngineError:
    return EngineError("chat_template_error", f"the model's chat template refuses this chat: {why}", "messages")


def _named(found: Any) -> dict[str, str]:
    """`chat_template` of tokenizer_config.json: one text, or a list of named ones."""
    if isinstance(found, str):
        return {"default": found}
    return {one["name"]: one["template"] for one in found or ()}


def _message(message: Message) -> dict[str, Any]:
    """Fields that are null go, as most templates mistake them for text; reasoning gets its usual name."""
    fields: dict[str, Any] = {name: value for name, value in _plain(message).items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    return fields if reasoning is None else {"thinking": reasoning, **fields, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """JSON values only: methods of richer objects would be callable from the template."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


# ── the environment of transformers ──────────────────────────────────────────────────────────────────────────────────


def _environment() -> Environment:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """`{% generation %}` marks what the assistant says, for training; here it only groups."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

        def _render(self, caller: Any) -> str:
            return str(caller())

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes HTML, which a prompt must not be.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local time without zone, as transformers has it
