"""The real small model's tokeniser, and small ones of the other kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from tokenizers import decoders, models

from streamrunner.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SENTENCEPIECE: dict[str, Callable[[], Any]] = {
    "llama": lambda: decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "gemma": lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": decoders.Metaspace,
    "wordpiece": decoders.WordPiece,
}


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.load(smollm2)


@pytest.fixture(scope="session", params=sorted(_SENTENCEPIECE))
def piece_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Tokenisers whose tokens are pieces of text, or single bytes: `<0x00>` is token 3, and so on."""
    return piecewise(_SENTENCEPIECE[request.param]())


@pytest.fixture(scope="session")
def llama_tokenizer() -> Tokenizer:
    """The kind that drops the blank in front of the first word and spells unknown characters in bytes."""
    return piecewise(_SENTENCEPIECE["llama"]())


def piecewise(decoder: Any) -> Tokenizer:
    words = ["▁", "▁▁", "▁Hello", "▁world", "Hello", "lo", "##ing", ".", "日"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {name: number for number, name in enumerate(names)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(names[:3])
    backend.decoder = decoder
    tokenizer = Tokenizer(backend)
    tokenizer.eos_token_ids = (2,)
    return tokenizer
