"""The real small model's tokeniser, small ones of the other kinds, and a tiny model with all that `LLM` needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from tokenizers import decoders, models

from streamrunner.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrunner.engine.llm import LLM

# The benchmarks are scripts, not a package; the tiny model is theirs too.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

_SENTENCEPIECE: dict[str, Callable[[], Any]] = {
    "llama": lambda: decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "gemma": lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": decoders.Metaspace,
    "wordpiece": decoders.WordPiece,
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random two-layer model whose tokens are bytes; 256 positions."""
    from tiny_model import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def new_llm(tiny_model: Path) -> Iterator[Callable[..., LLM]]:
    """Makes LLMs of the tiny model in float32; closes them."""
    from streamrunner.engine.llm import LLM

    made: list[LLM] = []

    def make(**options: Any) -> LLM:
        settings = {"dtype": "float32", "kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 4, **options}
        made.append(LLM(tiny_model, **settings))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture(scope="session")
def shared_llm(tiny_model: Path) -> Iterator[LLM]:
    from streamrunner.engine.llm import LLM

    with LLM(tiny_model, dtype="float32", kv_cache_memory_bytes=4 << 20, max_num_seqs=4) as llm:
        yield llm


@pytest.fixture
def llm(shared_llm: LLM, eventually: Callable[..., None]) -> LLM:
    """The tiny model with four sequences at once; shared, so every test proves that those before left nothing."""
    eventually(lambda: not shared_llm._dispatcher._calls and not shared_llm._core._live)
    return shared_llm


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
