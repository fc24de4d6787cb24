"""What may be given as a prompt: text, token ids or a chat; one, a list, or anything that yields them.

    "text"   {"prompt": "text"}                          text, tokenised with the model's begin-of-text token
    [1, 2]   {"prompt_token_ids": [1, 2]}                token ids, taken as they are
    [{"role": …}]   {"messages": [{"role": …}], …}       a chat, through the model's template; more keys are its options

An iterator is read as the engine gets on with the work, and never further than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from streamrunner.engine.tokenizer import Tokenizer

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message] | Mapping[str, Any]
Prompts = Prompt | Iterable[Prompt]

_KEYS = ("prompt", "prompt_token_ids", "messages")
_SHOWN = 40


class PreparedPrompt(NamedTuple):
    """Token ids, and the text they came from where there was one."""

    text: str | None
    token_ids: list[int]


class PromptList(NamedTuple):
    """Prompts one by one, and how many where that is known before."""

    prompts: Iterator[Prompt]
    length: int | None


def prompt_list(given: Prompts) -> PromptList:
    """Tell one prompt from many. Raises EngineError (`invalid_prompt`) for what is neither."""
    given = _listed(given)
    if _is_one(given):
        return PromptList(iter([given]), 1)  # type: ignore[list-item]
    if not isinstance(given, Iterable):
        raise _invalid(f"prompts are {type(given).__name__}", "give text, token ids, a chat, or an iterable of them")
    many: Iterable[Any] = given
    return PromptList(iter(many), len(many) if isinstance(many, Sized) else None)


def prepare_prompt(prompt: Prompt, tokenizer: Tokenizer, chat_options: Mapping[str, Any]) -> PreparedPrompt:
    """Tokens of one prompt. chat_options: arguments of `Tokenizer.apply_chat_template`, under those of the prompt.

    Raises EngineError (`invalid_prompt`, `empty_prompt`, `chat_template_error`).
    """
    prepared = _prepare(prompt, tokenizer, chat_options)
    if not prepared.token_ids:
        raise EngineError("empty_prompt", "the prompt has no tokens: give it at least one character", "prompt")
    return prepared


def _prepare(prompt: Prompt, tokenizer: Tokenizer, chat_options: Mapping[str, Any]) -> PreparedPrompt:
    prompt = _listed(prompt)
    if isinstance(prompt, str):
        return PreparedPrompt(prompt, tokenizer.encode(prompt))
    if isinstance(prompt, Mapping):
        return _prepare_mapping(prompt, tokenizer, chat_options)
    if _is_chat(prompt):
        return _prepare_chat({"messages": prompt}, tokenizer, chat_options)
    if _is_sequence(prompt):
        return PreparedPrompt(None, _token_ids(prompt))
    raise _invalid(f"a prompt is {type(prompt).__name__}", "give text, token ids or a chat")


def _prepare_mapping(
    prompt: Mapping[str, Any], tokenizer: Tokenizer, chat_options: Mapping[str, Any]
) -> PreparedPrompt:
    found = [key for key in _KEYS if prompt.get(key) is not None]
    if "messages" in found:
        return _prepare_chat(prompt, tokenizer, chat_options)
    if not found:
        raise _invalid(f"a prompt has the keys {sorted(map(str, prompt))}", f"give it one of {', '.join(_KEYS)}")
    text = prompt.get("prompt")
    if "prompt_token_ids" in found:
        return PreparedPrompt(text, _token_ids(prompt["prompt_token_ids"]))
    if not isinstance(text, str):
        raise _invalid(f"`prompt` is {type(text).__name__}", "give it as text")
    return PreparedPrompt(text, tokenizer.encode(text))


def _prepare_chat(chat: Mapping[str, Any], tokenizer: Tokenizer, chat_options: Mapping[str, Any]) -> PreparedPrompt:
    options = {**chat_options, **chat}
    messages = options.pop("messages")
    if not _is_sequence(messages) or not all(isinstance(one, Mapping) for one in messages):
        raise _invalid("`messages` is no list of messages", 'give it as [{"role": "user", "content": "…"}]')
    text = tokenizer.apply_chat_template(messages, **options)
    # The template writes begin-of-text itself where the model wants it.
    return PreparedPrompt(text, tokenizer.encode(text, add_special_tokens=False))


def _token_ids(given: Any) -> list[int]:
    given = _listed(given)
    if not _is_sequence(given):
        raise _invalid(f"token ids are {type(given).__name__}", "give them as a list of integers")
    for token_id in given:
        if not _is_integer(token_id):
            raise _invalid(f"{str(token_id)[:_SHOWN]!r} is no token id", "they are integers from 0 on")
    return list(map(int, given))


def _is_one(given: Any) -> bool:
    if isinstance(given, (str, Mapping)):
        return True
    return _is_sequence(given) and len(given) > 0 and (_is_chat(given) or _is_integer(given[0]))


def _is_chat(given: Any) -> bool:
    return _is_sequence(given) and len(given) > 0 and isinstance(given[0], Mapping) and "role" in given[0]


def _is_sequence(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes, bytearray))


def _is_integer(given: Any) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool)


def _listed(given: Any) -> Any:
    """Arrays and tensors as lists."""
    return given.tolist() if hasattr(given, "tolist") else given


def _invalid(what: str, remedy: str) -> EngineError:
    return EngineError("invalid_prompt", f"{what}: {remedy}", "prompt")
