"""From a folder of safetensors to a loaded model: one layer at a time, each weight packed and its plain form let go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from safetensors import safe_open

from streamrunner.engine.errors import EngineError
from streamrunner.engine.lora import LoraAdapter
from streamrunner.engine.lora_config import resolve_adapter
from streamrunner.engine.models.config import ModelConfig, is_native, read_config, text_weight_name
from streamrunner.engine.models.llama import LlamaLayer, LlamaModel
from streamrunner.kernels.int8_linear import Int8Linear
from streamrunner.kernels.linear import PackedLinear, RowRule
from streamrunner.kernels.llvm_vectors import LANES

if TYPE_CHECKING:
    from streamrunner.engine.config import EngineConfig
    from streamrunner.engine.models.decoder import DecoderModel
    from streamrunner.engine.models.rope import RotaryTables
    from streamrunner.kernels.linear import Linear

Tensor = torch.Tensor
_INDEX = "model.safetensors.index.json"


def load_model(folder: Path, config: EngineConfig) -> DecoderModel:
    """Load, merge the adapter if there is one, and pack: by the native path, or through transformers where the family
    is not one of its.

    Raises EngineError (`model_not_found`, `model_unsupported`, `lora_not_found`, `lora_unsupported`).
    """
    dtype, native = resolve_dtype(config.dtype), is_native(read_config(folder))
    adapter = _adapter(folder, config.lora_path)
    if not native:
        from streamrunner.engine.models.via_transformers import load_via_transformers

        _refuse_int8(config)
        return load_via_transformers(folder, dtype, config.max_model_len, adapter)
    shape = ModelConfig.load(folder)
    loader = _Loader(_Files(folder), dtype, adapter, config)
    with torch.inference_mode():
        model = loader.model(shape, config.max_model_len or shape.max_position)
    if adapter is not None:
        adapter.check_all_merged()
    return model


def _adapter(model_folder: Path, lora_path: str | None) -> LoraAdapter | None:
    if lora_path is None:
        return None
    adapter = LoraAdapter.load(resolve_adapter(lora_path))
    adapter.warn_of_other_base(model_folder)
    return adapter


def _refuse_int8(config: EngineConfig) -> None:
    for name, value in (("quantization", config.quantization), ("kv_cache_dtype", config.kv_cache_dtype)):
        if value == "int8":
            raise EngineError(
                "invalid_config",
                f"{name} int8 is only for families with a native path (docs/engine.md); this model runs through "
                "transformers: drop the option",
                name,
            )


def resolve_dtype(wanted: str) -> torch.dtype:
    """The dtype of the linear layers: "auto" is bfloat16 where the CPU multiplies it natively, else float32.

    Without such instructions bf16 products are emulated: measured 5 x slower than float32 on an AVX2 machine.
    """
    if wanted == "auto":
        return torch.bfloat16 if _has_bf16() else torch.float32
    return torch.bfloat16 if wanted == "bfloat16" else torch.float32


def _has_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return False
    return " avx512_bf16" in flags or " amx_bf16" in flags


class _Place(NamedTuple):
    file: Path
    name: str


class _Files:
    """Tensors by name over one or many safetensors files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, _Place] = {}
        for shard in self._shards():
            with self._open(folder / shard) as file:
                names = list(file.keys())
            self._places |= {text_weight_name(name): _Place(folder / shard, name) for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str) -> Tensor:
        if name not in self._places:
            raise EngineError("model_unsupported", f"{self._folder} has no weight {name!r}")
        place = self._places[name]
        with self._open(place.file) as file:
            tensor: Tensor = file.get_tensor(place.name)
        return tensor

    def _shards(self) -> list[str]:
        index = self._folder / _INDEX
        if index.exists():
            return sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        return ["model.safetensors"]

    def _open(self, path: Path) -> safe_open:
        try:
            return safe_open(path, framework="pt")
        except (OSError, FileNotFoundError) as error:
            raise EngineError("model_not_found", f"{path} cannot be read: {error}") from error


class _Loader:
    """Builds layers; layers of one shape share the trial of their row counts."""

    def __init__(self, files: _Files, dtype: torch.dtype, adapter: LoraAdapter | None, config: EngineConfig) -> None:
        self._files = files
        self._adapter = adapter
        self._dtype = dtype
        self._quantized = config.quantization == "int8"
        self._cache_dtype = torch.int8 if config.kv_cache_dtype == "int8" else dtype
        self._rules: dict[tuple[int, ...], RowRule] = {}
        self._norm_offset = 0.0

    def model(self, shape: ModelConfig, num_positions: int) -> LlamaModel:
        self._norm_offset = 1.0 if shape.centred_norms else 0.0
        embedding = self._files.read("model.embed_tokens.weight").to(self._dtype)
        tied = shape.tied_embeddings or "lm_head.weight" not in self._files
        head = self._adapted("lm_head", embedding if tied else self._files.read("lm_head.weight"))
        tables = shape.rotary_tables(num_positions)
        return LlamaModel(
            config=shape,
            embedding=embedding,
            layers=tuple(self._layer(shape, index, tables[one.rope]) for index, one in enumerate(shape.layers)),
            norm=self._norm("model.norm"),
            lm_head=self._packed(head, None),
            cache_dtype=self._cache_dtype,
        )

    def _layer(self, shape: ModelConfig, index: int, rotary: RotaryTables) -> LlamaLayer:
        at = f"model.layers.{index}."
        after, qk_normed = f"{at}post_attention_layernorm", f"{at}self_attn.q_norm.weight" in self._files
        return LlamaLayer(
            input_norm=self._norm(f"{at}input_layernorm"),
            qkv=self._first_of(f"{at}self_attn.qkv_proj", *(f"{at}self_attn.{name}_proj" for name in "qkv")),
            q_norm=self._norm(f"{at}self_attn.q_norm") if qk_normed else None,
            k_norm=self._norm(f"{at}self_attn.k_norm") if qk_normed else None,
            rotary=rotary,
            window=shape.layers[index].window,
            o=self._merged(f"{at}self_attn.o_proj"),
            attention_out_norm=self._norm(after) if shape.sandwich_norms else None,
            mlp_norm=self._norm(f"{at}pre_feedforward_layernorm" if shape.sandwich_norms else after),
            gate_up=self._first_of(f"{at}mlp.gate_up_proj", f"{at}mlp.gate_proj", f"{at}mlp.up_proj"),
            down=self._merged(f"{at}mlp.down_proj"),
            mlp_out_norm=self._norm(f"{at}post_feedforward_layernorm") if shape.sandwich_norms else None,
        )

    def _adapted(self, module: str, weight: Tensor) -> Tensor:
        return (weight if self._adapter is None else self._adapter.merged(module, weight)).to(self._dtype)

    def _norm(self, name: str) -> Tensor:
        return (self._files.read(f"{name}.weight").float() + self._norm_offset).contiguous()

    def _first_of(self, merged: str, *parts: str) -> Linear:
        """Phi-3's files have the merged weights already."""
        return self._merged(merged) if f"{merged}.weight" in self._files else self._merged(*parts)

    def _merged(self, *names: str) -> Linear:
        weight = torch.cat([self._adapted(name, self._files.read(f"{name}.weight")) for name in names])
        biases = [self._files.read(f"{name}.bias") for name in names if f"{name}.bias" in self._files]
        return self._packed(weight, torch.cat(biases).to(self._dtype) if biases else None)

    def _packed(self, weight: Tensor, bias: Tensor | None) -> Linear:
        if self._quantized:
            if weight.shape[1] % LANES:
                raise EngineError(
                    "model_unsupported",
                    f"a layer with {weight.shape[1]} inputs cannot be int8, which takes multiples of {LANES}: "
                    "drop quantization",
                )
            return Int8Linear(weight, bias)
        key = tuple(weight.shape)
        packed = PackedLinear(weight, bias, self._rules.get(key))
        self._rules[key] = packed.rule
        return packed
