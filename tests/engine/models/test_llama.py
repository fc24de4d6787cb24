"""The native path against transformers in float32, on tiny random models of each family."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from families import LENGTHS, check, new_core, prompts, run, save_model
from safetensors.torch import load_file, save_file

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.core import EngineCore
from streamrunner.engine.errors import EngineError
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from pathlib import Path

LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR_ROPE = {"type": "linear", "factor": 2.0}
YARN_ROPE = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "beta_fast": 4.0, "beta_slow": 1.0,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0],
    "original_max_position_embeddings": 32, "partial_rotary_factor": 0.25,
}  # fmt: skip
GEMMA = {"head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 24}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with gelu": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e3}}),
    "llama dynamic rope": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5000.0}}),
    "llama 3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama yarn rope": ("Llama", {"rope_parameters": YARN_ROPE}),
    "llama yarn rope, all options": (
        "Llama", {"rope_parameters": {**YARN_ROPE, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral with a window": ("Mistral", {"sliding_window": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with a window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "smollm3 with a window": (
        "SmolLM3", {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 16, "attention_bias": True},
    ),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", {**GEMMA, "num_hidden_layers": 3, "sliding_window_pattern": 3}),
    "phi3": ("Phi3", {"sliding_window": 40}),
    "phi3 partly rotated": ("Phi3", {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}}),
    "phi3 longrope": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
}  # fmt: skip


def make_model(family: str, folder: Path) -> Any:
    return save_model(*FAMILIES[family], folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_and_logprobs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """In one batch, in chunks, and continued from tokens that were made before."""
    reference = make_model(family, tmp_path)
    core = new_core(tmp_path, max_num_batched_tokens=32)
    # Beyond the original context transformers, too, takes longrope's long factors.
    given = prompts((33, 60, 130) if "longrope" in family else LENGTHS)
    steps = run(core, [(prompt, []) for prompt in given])
    outputs = [check(reference, prompt, own) for prompt, own in zip(given, steps, strict=True)]
    continued = run(core, [(prompt, output[:9]) for prompt, output in zip(given, outputs, strict=True)])
    assert [own[0].logprobs for own in continued] == [own[9].logprobs for own in steps]
    assert [[one.token_ids for one in own] for own in continued] == [
        [one.token_ids for one in own[9:]] for own in steps
    ]


def test_longrope_takes_the_short_factors_within_the_original_context(tmp_path: Path) -> None:
    reference = make_model("phi3 longrope", tmp_path)
    [steps] = run(new_core(tmp_path, max_model_len=32), [(prompts((8,))[0], [])])
    check(reference, prompts((8,))[0], steps)


def test_yarn_reaches_beyond_a_config_that_tells_the_original_context(tmp_path: Path) -> None:
    make_model("llama yarn rope", tmp_path)
    edit(tmp_path, max_position_embeddings=64)
    assert new_core(tmp_path).max_model_len == 256


def test_weights_in_bfloat16_say_nearly_the_same(tmp_path: Path) -> None:
    reference = make_model("gemma2", tmp_path).bfloat16()
    config = EngineConfig(kv_cache_memory_bytes=16 << 20, dtype="bfloat16")
    [steps] = run(EngineCore(load_model(tmp_path, config), config), [(prompts((37,))[0], [])])
    with torch.inference_mode():
        logits = reference(torch.tensor([prompts((37,))[0]])).logits[0, -1].float()
    assert steps[0].logprobs is not None
    for one in steps[0].logprobs[0]:
        assert one.logprob == pytest.approx(logits.log_softmax(-1)[one.token_id].item(), abs=0.1)


@pytest.mark.parametrize("family", ["gemma3", "mistral with a window"])
def test_the_text_part_of_a_model_with_images_runs(family: str, tmp_path: Path) -> None:
    """As released with Gemma 3 and Mistral Small 3.1, whose weights and config are nested."""
    reference = make_model(family, tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "gemma3" if family == "gemma3" else "mistral3", "vision_config": {}, "text_config": raw}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = load_file(tmp_path / "model.safetensors")
    nested = {"language_model." + name: tensor for name, tensor in tensors.items()}
    later = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    for spelled in (nested, later):
        save_file(spelled, tmp_path / "model.safetensors")
        [steps] = run(new_core(tmp_path), [(prompts((37,))[0], [])])
        check(reference, prompts((37,))[0], steps)


# ── config.json as it is found elsewhere ─────────────────────────────────────────────────────────────────────────────


def edit(folder: Path, *gone: str, **changes: Any) -> None:
    path = folder / "config.json"
    raw = {name: value for name, value in json.loads(path.read_text()).items() if name not in gone}
    path.write_text(json.dumps({**raw, **changes}))


@pytest.mark.parametrize(
    ("family", "gone", "older"),
    [
        ("llama linear rope", ["rope_parameters"], {"rope_theta": 5e3, "rope_scaling": LINEAR_ROPE}),
        ("smollm3", ["rope_parameters", "no_rope_layers", "layer_types"], {}),
        ("qwen2 with a window", ["layer_types"], {}),
        ("gemma2", ["layer_types", "rope_parameters", "tie_word_embeddings"], {"rope_theta": 1e4}),
        ("gemma3", ["layer_types", "rope_parameters"], {"rope_scaling": None, "sliding_window_pattern": 3}),
        ("phi3 partly rotated", ["rope_parameters"], {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ],
)  # fmt: skip
def test_older_spellings_of_config_json_mean_the_same(
    family: str, gone: list[str], older: dict[str, Any], tmp_path: Path
) -> None:
    reference = make_model(family, tmp_path)
    edit(tmp_path, *gone, **older)
    [steps] = run(new_core(tmp_path), [(prompts((37,))[0], [])])
    check(reference, prompts((37,))[0], steps)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"intermediate_size": 100}, "intermediate_size 100; it must be a multiple of 16"),
        ({"head_dim": 20}, "head_dim 20; it must be a multiple of 8"),
        (
            {"rope_parameters": {"rope_type": "proportional"}},
            "rope type 'proportional'; supported are default, dynamic",
        ),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope type 'llama3' without 'low_freq_factor'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised safetensors"),
        ({"use_bidirectional_attention": True}, "attention in both directions"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types with linear_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types with only 1 entries for 2 layers"),
    ],
)
def test_what_the_forward_pass_cannot_do_is_refused_by_name(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    make_model("llama", tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(EngineError) as caught:
        load_model(tmp_path, EngineConfig(dtype="float32"))
    assert caught.value.code == "model_unsupported"
    assert says in caught.value.message
