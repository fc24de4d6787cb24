"""A model that can be told what to say: after each byte always the same other one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrunner.engine import LLM

# Each is said in circles; digits end at 9.
CIRCLES = ["ABCDEFGHIJKLMNOPQRSTUVWXYZ", "🦩", "</think>", "\n "]
ENDING = "0123456789"


def save_reciter(folder: Path) -> Path:
    """A Llama whose layers do nothing and whose head maps each token to the one that follows it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from streamrunner.engine.tokenizer import Tokenizer
    from tiny_model import SHAPE, save_byte_tokenizer

    save_byte_tokenizer(folder)
    tokenizer = Tokenizer.load(folder)
    size = {"hidden_size": 272, "head_dim": 16, "tie_word_embeddings": False}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=258, **{**SHAPE, **size})).float().eval()
    for parameter in model.parameters():
        parameter.data.fill_(1.0 if parameter.dim() == 1 else 0.0)
    model.model.embed_tokens.weight.data[:, :258] = torch.eye(258)
    for circle in CIRCLES:
        token_ids = tokenizer.encode(circle)
        for token_id, following in zip(token_ids, [*token_ids[1:], token_ids[0]], strict=True):
            model.lm_head.weight.data[following, token_id] = 4.0
    digits = [*tokenizer.encode(ENDING), 257]
    for token_id, following in pairwise(digits):
        model.lm_head.weight.data[following, token_id] = 4.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """`ABC` goes on with `DEF`…, `🦩` with flamingos, `</think>` with itself, `5` with `6789` and an end."""
    from streamrunner.engine import LLM

    folder = save_reciter(tmp_path_factory.mktemp("reciter"))
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=4 << 20, max_num_seqs=8) as llm:
        yield llm
