"""GGUF files as llama.cpp writes them are converted to the model they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.convert_gguf import convert_model
from streamrunner.engine.core import EngineCore
from streamrunner.engine.gguf_config import GgufFacts, complete_config
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, HEADS, KV_HEADS, DIM, CONTEXT = 64, 4, 2, 32, 256
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def make_llama(**extra: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=HIDDEN, intermediate_size=96, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=DIM, max_position_embeddings=CONTEXT, **extra,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float().eval()
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    return model


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in llama.cpp's order: the two halves of a head take turns."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: Any, tensors: dict[str, torch.Tensor], **fields: Any) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(DIM)
    writer.add_value_length(DIM)
    writer.add_rope_dimension_count(DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_vocab_size(96)
    for name, value in fields.items():
        key = "llama." + name.replace("__", ".")
        writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(key, value)
    outer = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
    for name, weight in model.state_dict().items():
        if name in outer:
            writer.add_tensor(f"{outer[name]}.weight", weight.numpy())
            continue
        _, _, layer, inner = name.removesuffix(".weight").split(".", 3)
        if inner[-6:] in ("q_proj", "k_proj"):
            weight = interleaved(weight, HEADS if inner.endswith("q_proj") else KV_HEADS)
        writer.add_tensor(f"blk.{layer}.{_NAMES[inner]}.weight", weight.contiguous().numpy())
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(reference: Any, folder: Path) -> None:
    """Greedy tokens and log-probabilities, far enough in for scaled positions to matter."""
    config = EngineConfig(kv_cache_memory_bytes=16 << 20, dtype="float32")
    core = EngineCore(load_model(folder, config), config)
    prompt = torch.randint(6, 96, (180,), generator=torch.Generator().manual_seed(1)).tolist()
    core.add_request("a", prompt, SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=0))
    found: list[tuple[int, float]] = []
    while core.has_unfinished():
        for one in core.step().outputs:
            assert one.logprobs is not None
            found += [(top[0].token_id, top[0].logprob) for top in one.logprobs]
    tokens = [token for token, _ in found]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].double()
    assert tokens == logits.argmax(-1).tolist()
    assert [one for _, one in found] == pytest.approx(logits.log_softmax(-1).amax(-1).tolist(), abs=1e-4)


def test_heads_of_any_size_and_llama_3s_positions(tmp_path: Path) -> None:
    model = make_llama(rope_parameters=LLAMA3)
    plain = 1.0 / 10000.0 ** (torch.arange(0, DIM, 2).float() / DIM)
    divisors = plain / model.model.rotary_emb.inv_freq
    assert divisors.max() > 3.9
    write_gguf(tmp_path / "tiny.gguf", model, {"rope_freqs.weight": divisors})
    convert_model(tmp_path / "tiny.gguf", tmp_path / "out")
    check(model, tmp_path / "out")


@pytest.mark.parametrize(
    ("rope", "fields"),
    [
        (
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
            {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64},
            {
                "rope__scaling__type": "yarn", "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 64.0,
            },
        ),
    ],
    ids=["linear", "yarn"],
)  # fmt: skip
def test_scaled_positions(rope: dict[str, Any], fields: dict[str, Any], tmp_path: Path) -> None:
    model = make_llama(rope_parameters=rope)
    write_gguf(tmp_path / "tiny.gguf", model, {}, **fields)
    convert_model(tmp_path / "tiny.gguf", tmp_path / "out")
    check(model, tmp_path / "out")


# ── other families, by their configs ─────────────────────────────────────────────────────────────────────────────────


def completed(name: str, fields: dict[str, Any], factors: dict[str, list[float]] | None = None, **extra: Any) -> Any:
    import transformers

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 256}
    config = getattr(transformers, f"{name}Config")(**{**sizes, "pad_token_id": 0, **extra})
    complete_config(config, GgufFacts(fields, factors or {}))
    return config


def test_phi_3_rotates_a_part_and_keeps_its_window_and_its_factors() -> None:
    factors = {"rope_factors_long.weight": [2.0] * 4, "rope_factors_short.weight": [1.0] * 4}
    fields = {
        "rope.dimension_count": 8, "attention.sliding_window": 40,
        "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.25,
    }  # fmt: skip
    config = completed("Phi3", fields, factors)
    rope = config.rope_parameters
    assert config.sliding_window == 40
    assert (rope["rope_type"], rope["partial_rotary_factor"], rope["attention_factor"]) == ("longrope", 0.5, 1.25)
    assert (rope["long_factor"], rope["original_max_position_embeddings"]) == ([2.0] * 4, 64)


def test_gemma_keeps_its_caps_and_the_largest_their_scale() -> None:
    config = completed("Gemma2", {"attention.key_length": 24, "final_logit_softcapping": 20.0})
    assert (config.head_dim, config.query_pre_attn_scalar, config.final_logit_softcapping) == (24, 24, 20.0)
    assert completed("Gemma2", {"attention.key_length": 24}, num_hidden_layers=46).query_pre_attn_scalar == 16


def test_gemma_3_scales_layers_without_window_only() -> None:
    rope = completed("Gemma3Text", {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}).rope_parameters
    assert (rope["full_attention"]["rope_type"], rope["full_attention"]["factor"]) == ("linear", 8.0)
    assert rope["sliding_attention"]["rope_type"] == "default"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"attention.key_length": 32, "attention.value_length": 16}, "heads of 32 numbers for keys and 16 for values"),
        ({"rope.scaling.type": "spiral"}, "rope.scaling.type 'spiral'"),
    ],
)
def test_what_a_config_has_no_words_for_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        completed("Llama", fields)
