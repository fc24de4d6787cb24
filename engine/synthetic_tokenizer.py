"""The synthetic engine's tokenizer: every byte is a token, and so is every one of 4,096 made-up words."""

from __future__ import annotations

from functools import cache

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from streamrunner.engine.chat_template import ChatTemplates
from streamrunner.engine.tokenizer import Tokenizer

_SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu", "zé")
NUM_WORDS = len(_SYLLABLES) ** 3
FIRST_WORD_ID = 256
EOS_ID = FIRST_WORD_ID + NUM_WORDS
_EOS = "<|end|>"
_CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def synthetic_tokenizer() -> Tokenizer:
    """A prompt has one token a byte (UTF-8), an answer one token a word."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate([*alphabet, *_words()])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([_EOS])
    names = {"eos_token": _EOS}
    tokenizer = Tokenizer(backend, names, ChatTemplates({"default": _CHAT}, names))
    tokenizer.eos_token_ids = (EOS_ID,)
    return tokenizer


@cache
def _words() -> tuple[str, ...]:
    """In the byte alphabet of GPT-2, where `Ġ` is the blank in front of a word."""
    spelled = [one.replace("é", "Ã©") for one in _SYLLABLES]
    return tuple(f"Ġ{a}{b}{c}" for a in spelled for b in spelled for c in spelled)
