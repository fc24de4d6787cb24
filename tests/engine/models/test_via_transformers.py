"""Other decoders through transformers' code and our pages, against transformers alone, in float32."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from families import LENGTHS, check, new_core, prompts, run, save_model

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.core import EngineCore
from streamrunner.engine.errors import EngineError
from streamrunner.engine.models import via_transformers
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from pathlib import Path

    import torch

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "Olmo2": {},
    "Granite": {"attention_multiplier": 0.3, "logits_scaling": 2.0},
    "Starcoder2": {"sliding_window": 20},
    "Cohere2": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "StableLm": {"use_qkv_bias": True},
    "Phi": {"hidden_size": 80},
    "GPTNeoX": {},
    "Cohere": {},
    "GPT2": {"n_positions": 256},
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 32},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_and_logprobs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """In one batch, in chunks, and continued from tokens that were made before."""
    reference = save_model(family, FAMILIES[family], tmp_path)
    core = new_core(tmp_path, max_num_batched_tokens=32)
    given = prompts(LENGTHS)
    steps = run(core, [(prompt, []) for prompt in given])
    outputs = [check(reference, prompt, own) for prompt, own in zip(given, steps, strict=True)]
    continued = run(core, [(prompt, output[:9]) for prompt, output in zip(given, outputs, strict=True)])
    assert [[one.token_ids for one in own] for own in continued] == [
        [one.token_ids for one in own[9:]] for own in steps
    ]


def test_what_older_transformers_keep_to_themselves_is_refused_by_name_or_right(tmp_path: Path) -> None:
    """Falcon calls AttentionInterface since transformers 5.25."""
    reference = save_model("Falcon", {}, tmp_path)
    try:
        core = new_core(tmp_path, max_num_batched_tokens=32)
    except EngineError:
        assert "attention of its own, without AttentionInterface" in refused(tmp_path)
        return
    given = prompts(LENGTHS)
    for prompt, own in zip(given, run(core, [(prompt, []) for prompt in given]), strict=True):
        check(reference, prompt, own)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["Olmo2", "GPT2", "Qwen2Moe"])
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(family: str, dtype: Any, tmp_path: Path) -> None:
    save_model(family, FAMILIES[family], tmp_path)
    config = EngineConfig(
        kv_cache_memory_bytes=16 << 20, dtype=dtype, max_num_seqs=16, max_num_batched_tokens=48,
        enable_prefix_caching=False,
    )  # fmt: skip
    model, given = load_model(tmp_path, config), prompts((5, 70))
    together = run(EngineCore(model, config), [(prompt, []) for prompt in given])
    for prompt, own in zip(given, together, strict=True):
        [alone] = run(EngineCore(model, config), [(prompt, [])])
        assert [one[:3] for one in alone] == [("0", *one[1:3]) for one in own]


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(folder: Path) -> str:
    with pytest.raises(EngineError) as caught:
        load_model(folder, EngineConfig(dtype="float32"))
    assert caught.value.code == "model_unsupported"
    return caught.value.message


@pytest.mark.parametrize(
    ("family", "extra", "says"),
    [
        ("Bloom", {}, "no max_position_embeddings|attention of its own"),
        ("Falcon", {"alibi": True}, "alibi in its config.json"),
        ("GPTNeo", {"attention_types": [[["global", "local"], 1]]}, "attention of its own"),
        ("GptOss", {"num_local_experts": 4, "head_dim": 16}, "attention sinks"),
        ("Mamba", {}, "no max_position_embeddings|layer_types with linear_attention"),
        ("Rwkv", {}, "no max_position_embeddings|state beside keys and values|attention of its own"),
        ("Llama4Text", {"head_dim": 16}, "attention_chunk_size in its config.json"),
    ],
)
def test_what_our_pages_do_not_hold_is_refused_by_name(
    family: str, extra: dict[str, Any], says: str, tmp_path: Path
) -> None:
    save_model(family, extra, tmp_path)
    assert any(word in refused(tmp_path) for word in says.split("|"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "t5"}, "model_type 't5', an encoder-decoder"),
        ({"model_type": "bert"}, "attention that is not causal"),
        ({"model_type": "my_own", "auto_map": {"AutoConfig": "code.Config"}}, "transformers does not take"),
        ({"vision_config": {"a": 1}}, "vision_config"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised safetensors"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types with chunked_attention"),
        (
            {"rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64, "factor": 4.0,
            }},
            "set max_model_len to 64 at most",
        ),
    ],
)  # fmt: skip
def test_a_config_that_asks_for_more_is_refused_by_name(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    save_model("Olmo2", {}, tmp_path)
    edit(tmp_path, **changes)
    assert says in refused(tmp_path)


def test_what_nobody_knows_a_name_for_is_found_by_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a model's attention had a bias that our function was never told of."""
    save_model("Olmo2", {}, tmp_path)
    attend = via_transformers.paged_attention

    def biased(*args: Any, **kwargs: Any) -> torch.Tensor:
        return attend(*args, **kwargs) * 1.1

    monkeypatch.setattr(via_transformers, "paged_attention", biased)
    assert "says other things than it should" in refused(tmp_path)
