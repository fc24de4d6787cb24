"""LoRA adapters against weights that are changed by hand, in PEFT's way."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.convert import model_digest
from streamrunner.engine.core import EngineCore
from streamrunner.engine.errors import EngineError
from streamrunner.engine.lora_config import resolve_adapter
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
RANK, ALPHA = 4, 6
CONFIG = {
    "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj"], "bias": "none",
    "base_model_name_or_path": "someone/tiny", "lora_dropout": 0.1, "modules_to_save": None, "rank_pattern": {},
    "megatron_core": "megatron.core", "loftq_config": {}, "init_lora_weights": True, "use_dora": False,
}  # fmt: skip
LAYER = "model.layers.1."
Q, DOWN = f"{LAYER}self_attn.q_proj", f"{LAYER}mlp.down_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama, and beside it, in `adapter`, one for two of its layers."""
    model = make_model(tmp_path / "tiny", "Llama")
    write_adapter(tmp_path / "adapter", factors(model, [Q, DOWN]))
    return tmp_path


def make_model(folder: Path, family: str, **extra: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SHAPE, **extra)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    return model


def factors(model: Any, modules: list[str], rank: int = RANK) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A and B of each module."""
    shapes = {name: model.get_submodule(name).weight.shape for name in modules}
    return {name: (torch.randn(rank, size[1]) * 0.3, torch.randn(size[0], rank) * 0.3) for name, size in shapes.items()}


def write_adapter(folder: Path, pairs: dict[str, tuple[torch.Tensor, torch.Tensor]], **changes: Any) -> None:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    save(folder, {f"{name}.lora_{side}.weight": part for name, two in pairs.items() for side, part in zip("AB", two)})  # noqa: B905


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file({f"base_model.model.{name}": one for name, one in tensors.items()}, folder / "adapter_model.safetensors")


def change(model: Any, pairs: dict[str, tuple[torch.Tensor, torch.Tensor]], scale: float) -> None:
    for name, (a, b) in pairs.items():
        module = model.get_submodule(name)
        module.weight = torch.nn.Parameter(module.weight + scale * b @ a)


def new_core(folder: Path, adapter: Path | None, **settings: Any) -> EngineCore:
    path = None if adapter is None else str(adapter)
    config = EngineConfig(kv_cache_memory_bytes=16 << 20, lora_path=path, **{"dtype": "float32", **settings})
    return EngineCore(load_model(folder, config), config)


def run(core: EngineCore, count: int = 1) -> list[list[tuple[int, float]]]:
    """Tokens and log-probabilities of so many prompts in one batch."""
    generator = torch.Generator().manual_seed(1)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
    found: dict[str, list[tuple[int, float]]] = {str(index): [] for index in range(count)}
    for name in found:
        core.add_request(name, torch.randint(6, 97, (20,), generator=generator).tolist(), params)
    while core.has_unfinished():
        for one in core.step().outputs:
            assert one.logprobs is not None
            found[one.request_id] += [(top[0].token_id, top[0].logprob) for top in one.logprobs]
    return list(found.values())


def check(reference: Any, core: EngineCore) -> None:
    prompt = torch.randint(6, 97, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    [ours] = run(core)
    tokens = [token for token, _ in ours]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].double()
    assert tokens == logits.argmax(-1).tolist()
    expected = logits.log_softmax(-1).amax(-1).tolist()
    assert [logprob for _, logprob in ours] == pytest.approx(expected, abs=1e-4)


# ── what is computed ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("family", "extra", "modules"),
    [
        ("Llama", {}, [f"{LAYER}self_attn.{one}_proj" for one in "qkvo"] + ["lm_head"]),
        ("Llama", {"tie_word_embeddings": True}, [f"{LAYER}mlp.gate_proj", f"{LAYER}mlp.up_proj", DOWN, "lm_head"]),
        ("Phi3", {}, [f"{LAYER}self_attn.qkv_proj", f"{LAYER}mlp.gate_up_proj"]),
        # Through transformers' own code.
        ("Granite", {"tie_word_embeddings": True}, [Q, DOWN, "lm_head"]),
    ],
)
def test_an_adapter_changes_what_its_factors_say(
    family: str, extra: dict[str, Any], modules: list[str], tmp_path: Path
) -> None:
    reference = make_model(tmp_path / "tiny", family, **extra)
    pairs = factors(reference, modules)
    write_adapter(tmp_path / "adapter", pairs)
    before = run(new_core(tmp_path / "tiny", None))
    change(reference, pairs, ALPHA / RANK)
    check(reference, new_core(tmp_path / "tiny", tmp_path / "adapter"))
    assert run(new_core(tmp_path / "tiny", None)) == before != run(new_core(tmp_path / "tiny", tmp_path / "adapter"))


def test_rank_and_scale_may_differ_by_module_and_be_rank_stabilised(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "tiny", "Llama")
    first, second = factors(reference, [Q]), factors(reference, [DOWN], rank=9)
    write_adapter(
        tmp_path / "adapter", first | second,
        use_rslora=True, rank_pattern={r"layers\.\d\.mlp.down_proj": 9}, alpha_pattern={"down_proj": 3},
    )  # fmt: skip
    change(reference, first, ALPHA / RANK**0.5)
    change(reference, second, 3 / 9**0.5)
    check(reference, new_core(tmp_path / "tiny", tmp_path / "adapter"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"dtype": "bfloat16"}, {"quantization": "int8", "kv_cache_dtype": "int8"}],
    ids=["float32", "bfloat16", "int8"],
)
def test_with_an_adapter_results_do_not_depend_on_the_batch_either(folder: Path, settings: dict[str, Any]) -> None:
    both = folder / "tiny", folder / "adapter"
    alone = run(new_core(*both, **settings), 1)[0]
    assert run(new_core(*both, **settings), 16)[0] == alone != run(new_core(folder / "tiny", None, **settings), 1)[0]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def refused(folder: Path) -> EngineError:
    with pytest.raises(EngineError) as caught:
        new_core(folder / "tiny", folder / "adapter")
    assert caught.value.param == "lora_path"
    return caught.value


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, 'bias: "all"'),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"an_option_of_tomorrow": {"a": 1}}, "an_option_of_tomorrow"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4', which changed the base"),
        ({"r": 8}, "mlp.down_proj where its config has 8"),
        ({"r": 0}, "r 0, which is no rank"),
    ],
)
def test_a_config_that_cannot_be_merged_is_refused_by_name(changes: dict[str, Any], says: str, folder: Path) -> None:
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    error = refused(folder)
    assert error.code == "lora_unsupported"
    assert says in error.message


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({f"{Q}.lora_A.weight": (4, 64)}, f"only half of {Q}"),
        (
            {f"{Q}.lora_A.weight": (4, 32), f"{Q}.lora_B.weight": (64, 4)},
            f"{Q} of (64, 32) where the model has (64, 64)",
        ),
        (
            {
                "model.layers.7.mlp.down_proj.lora_A.weight": (4, 96),
                "model.layers.7.mlp.down_proj.lora_B.weight": (64, 4),
            },
            "model.layers.7.mlp.down_proj, not a linear layer of this model",
        ),
        ({"model.embed_tokens.lora_embedding_A": (4, 97)}, "the weight base_model.model.model.embed_tokens"),
        ({f"{Q}.lora_magnitude_vector": (64,)}, "lora_magnitude_vector"),
        ({}, "no weights"),
    ],
)
def test_weights_that_do_not_fit_the_model_are_refused_by_name(
    tensors: dict[str, tuple[int, ...]], says: str, folder: Path
) -> None:
    save(folder / "adapter", {name: torch.ones(shape) for name, shape in tensors.items()})
    error = refused(folder)
    assert error.code == "lora_unsupported"
    assert says in error.message


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("adapter_config.json", None, "has no adapter_config.json"),
        ("adapter_config.json", b"{", "cannot be read"),
        ("adapter_model.safetensors", None, "has no adapter_model.safetensors"),
        ("adapter_model.safetensors", b"\x80pickle", "cannot be read"),
    ],
)
def test_files_that_are_missing_or_broken_are_named(name: str, content: bytes | None, says: str, folder: Path) -> None:
    path = folder / "adapter" / name
    path.unlink() if content is None else path.write_bytes(content)
    error = refused(folder)
    assert error.code == "lora_not_found"
    assert says in error.message


def test_layers_that_transformers_keeps_transposed_are_refused_by_name(folder: Path) -> None:
    make_model(folder / "gpt2", "GPT2")
    name = "transformer.h.0.attn.c_attn"
    save(folder / "adapter", {f"{name}.lora_A.weight": torch.ones(4, 64), f"{name}.lora_B.weight": torch.ones(192, 4)})
    with pytest.raises(EngineError, match="c_attn, not a linear layer of this model"):
        new_core(folder / "gpt2", folder / "adapter")


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "adapter" / "adapter_model.safetensors").rename(folder / "adapter" / "adapter_model.bin")
    assert "adapter_model.bin, a pickle that can run code" in refused(folder).message


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_adapter_of_a_model_of_another_name_is_run_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        new_core(folder / "tiny", folder / "adapter")
        assert caplog.text == ""
        changed = {**CONFIG, "base_model_name_or_path": "someone/Large-7B"}
        (folder / "adapter" / "adapter_config.json").write_text(json.dumps(changed))
        new_core(folder / "tiny", folder / "adapter")
    assert "trained on someone/Large-7B" in caplog.text


def test_an_adapter_makes_another_model_of_it(folder: Path) -> None:
    plain = model_digest("tiny", folder, folder)
    adapted = model_digest("tiny", folder, folder, "adapter")
    assert plain != adapted == model_digest("tiny", folder, folder, str(folder / "adapter"))
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps({**CONFIG, "lora_alpha": 7}))
    assert model_digest("tiny", folder, folder, "adapter") not in (plain, adapted)


def test_an_adapter_that_is_no_folder_is_looked_for_on_the_hub() -> None:
    with pytest.raises(EngineError, match="'some/adapter' is no folder, and the hub does not give it") as caught:
        resolve_adapter("some/adapter")
    assert caught.value.code == "lora_not_found"
