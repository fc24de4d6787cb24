"""A random two-layer Llama whose tokens are bytes, with a chat template: all of the engine, in milliseconds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

CHAT_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SPECIAL = ("<s>", "</s>")
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip


def save_tiny_model(folder: Path, *, max_position: int = 256) -> Path:
    """Tokens 0 to 255 are bytes in GPT-2's alphabet, then `<s>` (in front of no prompt) and `</s>`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=258, **{**SHAPE, "max_position_embeddings": max_position})
    model: Any = LlamaForCausalLM(config)
    model.float().eval()
    # Random initial weights are so small that every token is as likely as any other: spread them.
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


def save_byte_tokenizer(folder: Path, chat_template: str = CHAT_TEMPLATE) -> None:
    """tokenizer.json and its config, beside a model's weights."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({name: number for number, name in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
