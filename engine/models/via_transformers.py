"""Every other decoder through transformers' own modeling code, with our paged attention behind its AttentionInterface.

A step's tokens go in as one row with their positions; wherever the model attends, `_attend` writes K and V to our pages
and reads them there. Linear layers are packed as in the native path. What cannot work so is refused by name, and what
nobody knows a name for by trial: on a few tokens the model has to say what it says with transformers' own attention,
at once and in two steps.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from streamrunner.engine.batch import PackedBatch
from streamrunner.engine.errors import EngineError
from streamrunner.engine.models.cache import KVCache, empty_pages
from streamrunner.kernels.attention import paged_attention
from streamrunner.kernels.rope import rope_and_cache

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.engine.lora import LoraAdapter

Tensor = torch.Tensor

_NAME = "streamrunner_paged"
# The vector loops need heads of whole vectors; zeros beyond the head change neither scores nor values.
_HEAD_STEP = 8
# torch computes the rest of two vectors by another code than whole ones: with so many rows there is no rest, not even
# where a row is one number.
_ROW_STEP = {torch.float32: 32, torch.bfloat16: 64}
_KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
_TRIAL_TOKENS, _TRIAL_PAGE = 12, 16
# Mean difference of logits to their spread: rounding stays far below, a forgotten bias or state far above.
_TRIAL_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}


class ModelLimits(NamedTuple):
    """What the engine asks of a model's config."""

    vocab_size: int
    max_position: int


class _Heads(NamedTuple):
    """What one layer attends with. size: numbers of a head in the pages. window: slots a token sees, 0 for all."""

    kv_heads: int
    size: int
    window: int


class _Step(NamedTuple):
    """What `_attend` needs of the forward pass it is called in. empty: cos and sin of no rotation."""

    batch: PackedBatch
    dtype: torch.dtype
    cache: list[KVCache] | None
    empty: Tensor
    heads: dict[int, _Heads]


_step: ContextVar[_Step] = ContextVar("step")


class TransformersModel:
    """A model of transformers over our cache. Made by `load_via_transformers`."""

    def __init__(self, module: Any, config: ModelLimits, dtype: torch.dtype, heads: list[_Heads]) -> None:
        self.config = config
        self._module = module
        self._dtype = dtype
        self._heads = heads
        self._empty = torch.empty((config.max_position, 0), dtype=torch.float32)

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory of one token's keys and values over all layers."""
        return 2 * sum(one.kv_heads * one.size for one in self._heads) * self._dtype.itemsize

    def new_cache(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Empty pages for every layer."""
        return [empty_pages(num_blocks, block_size, one.kv_heads, one.size, self._dtype) for one in self._heads]

    def forward(self, batch: PackedBatch, cache: list[KVCache]) -> Tensor:
        """Compute all tokens of the batch; returns float32 logits [rows to sample, V]."""
        rows = batch.sample_rows
        with torch.inference_mode():
            logits = run_module(self._module, _Step(batch, self._dtype, cache, self._empty, {}), rows)
        return logits[: rows.shape[0]]


def run_module(module: Any, step: _Step, rows: Tensor) -> Tensor:
    """Logits [rows, V] float32 of a forward pass; of one row at least."""
    missing = -step.batch.token_ids.shape[0] % _ROW_STEP[step.dtype]
    token_ids, positions = (torch.nn.functional.pad(one, (0, missing))[None] for one in step.batch[:2])
    token = _step.set(step)
    try:
        out = module(
            input_ids=token_ids, position_ids=positions, use_cache=False,
            logits_to_keep=rows if rows.shape[0] else torch.zeros(1, dtype=torch.int64),
        )  # fmt: skip
    finally:
        _step.reset(token)
    logits: Tensor = out.logits[0].float()
    return logits


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' attention function. query: [1, H, T, D] · key, value: [1, KV, T, D]. Returns [1, T, H, D]."""
    step = _step.get()
    _check_options(module, attention_mask, options)
    size = query.shape[-1]
    if key.shape[-1] != size or value.shape[-1] != size:
        raise _unsupported(f"heads of {size} numbers for queries and {value.shape[-1]} for values")
    padded = -(-size // _HEAD_STEP) * _HEAD_STEP
    heads = _Heads(key.shape[1], padded, options.get("sliding_window") or 0)
    batch, rows = step.batch, step.batch.token_ids.shape[0]
    packed = torch.cat([_packed(one[0, :, :rows], padded) for one in (query, key, value)], dim=1)
    pages = _pages(step, module.layer_idx, heads, packed.dtype)
    q = rope_and_cache(packed, step.empty, step.empty, batch.positions, batch.slots, pages.k, pages.v)
    scale = options.get("scaling")
    attended = query.new_zeros(query.shape[2], *q.shape[1:])
    attended[: q.shape[0]] = paged_attention(
        q, pages.k, pages.v, batch.block_tables, batch.positions, batch.tiles,
        size**-0.5 if scale is None else float(scale), heads.window,
        float(options.get("softcap") or 0.0),
    )  # fmt: skip
    return attended[None, :, :, :size], None


def _packed(heads: Tensor, padded: int) -> Tensor:
    """[H, T, D] as [T, H * padded]."""
    rows = heads.transpose(0, 1)
    return torch.nn.functional.pad(rows, (0, padded - rows.shape[-1])).flatten(1)


def _pages(step: _Step, layer: int, heads: _Heads, dtype: torch.dtype) -> KVCache:
    """The layer's pages; in a trial they are made, and what the layer attends with is noted."""
    if step.cache is not None and layer < len(step.cache):
        return step.cache[layer]
    if layer in step.heads:
        raise _unsupported("several attentions in one layer")
    step.heads[layer] = heads
    return empty_pages(1, _TRIAL_PAGE, heads.kv_heads, heads.size, dtype)


def _check_options(module: Any, attention_mask: Tensor | None, options: dict[str, Any]) -> None:
    if attention_mask is not None:
        raise _unsupported("an attention mask of its own (alibi, prefixes or cross attention)")
    if options.get("s_aux") is not None:
        raise _unsupported("attention sinks")
    if not getattr(module, "is_causal", True) or getattr(module, "is_cross_attention", False):
        raise _unsupported("attention that is not causal")


# ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def load_via_transformers(
    folder: Path, dtype: torch.dtype, max_model_len: int | None, adapter: LoraAdapter | None = None
) -> TransformersModel:
    """Load, merge the adapter, try and pack. Raises EngineError (`model_unsupported`, `lora_unsupported`)."""
    from transformers import AttentionInterface, AutoConfig

    from streamrunner.engine.models.packed_experts import register_experts
    from streamrunner.engine.models.packed_modules import pack_linears

    AttentionInterface.register(_NAME, _attend)
    register_experts()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        raise _unsupported(f"a config.json that transformers does not take: {_first_line(error)}") from error
    _check_config(config, max_model_len)
    module = _module(folder, config, dtype)
    if adapter is not None:
        adapter.merge_into(module)
    limits = ModelLimits(config.vocab_size, config.max_position_embeddings)
    token_ids = (torch.arange(_TRIAL_TOKENS) * 7 + 3) % limits.vocab_size
    with torch.inference_mode():
        expected = _said_by_transformers(module, token_ids)
        pack_linears(module)
        heads = _try(module, token_ids, expected, dtype)
    return TransformersModel(module, limits, dtype, heads)


def _module(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    from streamrunner.engine.models.packed_experts import EXPERTS_NAME

    try:
        module = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=_NAME, local_files_only=True,
            trust_remote_code=False, use_safetensors=True, experts_implementation=EXPERTS_NAME,
        )  # fmt: skip
    except KeyError as error:
        raise _unsupported(
            f"model_type {config.model_type!r}: attention of its own, without AttentionInterface"
        ) from error
    except (ValueError, OSError, RuntimeError) as error:
        raise _unsupported(f"model_type {config.model_type!r}: {_first_line(error)}") from error
    # transformers before 5.25 marks these models; later ones are found by _check_config and by the trial.
    if getattr(module, "_is_stateful", False):
        raise _unsupported("state beside keys and values (a state space model)")
    module.train(False)
    return module


def _check_config(config: Any, max_model_len: int | None) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise _unsupported(f"model_type {config.model_type!r}, an encoder-decoder")
    for name in ("vision_config", "audio_config", "add_cross_attention", "alibi", "attention_chunk_size"):
        if getattr(config, name, None):
            raise _unsupported(f"{name} in its config.json")
    if getattr(config, "quantization_config", None):
        raise _unsupported("quantised safetensors; use the GGUF file or the unquantised model")
    if not isinstance(getattr(config, "max_position_embeddings", None), int):
        raise _unsupported("no max_position_embeddings: positions it does not know (alibi, or a state space model)")
    odd = set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS
    if odd:
        raise _unsupported(f"layer_types with {', '.join(sorted(odd))}")
    _check_rope(config, max_model_len)


def _check_rope(config: Any, max_model_len: int | None) -> None:
    """transformers chooses longrope's factors by the longest text of a batch: one text must not change another."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        original = rope["original_max_position_embeddings"]
        if (max_model_len or config.max_position_embeddings) > original:
            raise _unsupported(f"rope type 'longrope': set max_model_len to {original} at most")


# ── the trial ────────────────────────────────────────────────────────────────────────────────────────────────────────


_FAULTS = (TypeError, AttributeError, RuntimeError, ValueError, IndexError, LookupError)


def _said_by_transformers(module: Any, token_ids: Tensor) -> Tensor:
    """Logits [1, V] with transformers' own attention and plain weights."""
    try:
        module.set_attn_implementation("eager")
        logits: Tensor = module(input_ids=token_ids[None], use_cache=False).logits[0, -1:].float()
        module.set_attn_implementation(_NAME)
    except _FAULTS as error:
        raise _unsupported(f"code that does not run on plain tokens: {_first_line(error)}") from error
    return logits


def _try(module: Any, token_ids: Tensor, expected: Tensor, dtype: torch.dtype) -> list[_Heads]:
    """What the layers attend with, from a few tokens that must come out as expected: at once, and in two steps."""
    empty = torch.empty((_TRIAL_TOKENS, 0), dtype=torch.float32)
    whole, half = _trial_batch(token_ids, 0), _TRIAL_TOKENS // 2
    found: dict[int, _Heads] = {}
    try:
        at_once = run_module(module, _Step(whole, dtype, None, empty, found), whole.sample_rows)
        heads = _heads_in_order(found, module.config)
        cache = [empty_pages(1, _TRIAL_PAGE, one.kv_heads, one.size, dtype) for one in heads]
        for batch in (_trial_batch(token_ids[:half], 0), _trial_batch(token_ids[half:], half)):
            in_steps = run_module(module, _Step(batch, dtype, cache, empty, {}), batch.sample_rows)
    except _FAULTS as error:
        raise _unsupported(f"code that our attention does not fit: {_first_line(error)}") from error
    for logits in (at_once, in_steps):
        if not (logits - expected).abs().mean() <= _TRIAL_TOLERANCE[dtype] * expected.std():
            raise _unsupported("attention or state that our pages do not hold: it says other things than it should")
    return heads


def _heads_in_order(found: dict[int, _Heads], config: Any) -> list[_Heads]:
    count = config.num_hidden_layers
    if not found:
        raise _unsupported(f"model_type {config.model_type!r}: attention of its own, without AttentionInterface")
    if sorted(found) != list(range(count)):
        raise _unsupported(f"{count} layers of which {len(found)} attend: cross attention, or state beside the cache")
    heads = [found[layer] for layer in range(count)]
    for layer, one in enumerate(heads):
        if one.window == 0 and _slides(config, layer):
            raise _unsupported("a sliding window that its attention is not told of")
    return heads


def _slides(config: Any, layer: int) -> bool:
    if not getattr(config, "sliding_window", None) or not getattr(config, "use_sliding_window", True):
        return False
    kinds = getattr(config, "layer_types", None)
    return kinds is None or kinds[layer] == "sliding_attention"


def _trial_batch(token_ids: Tensor, start: int) -> PackedBatch:
    count = token_ids.shape[0]
    positions = torch.arange(start, start + count)
    return PackedBatch(
        token_ids=token_ids, positions=positions, slots=positions, block_tables=torch.zeros((1, 1), dtype=torch.int64),
        tiles=torch.tensor([[0, 0, count]]), sample_rows=torch.tensor([count - 1]),
    )  # fmt: skip


def _first_line(error: BaseException) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200]


def _unsupported(what: str) -> EngineError:
    return EngineError("model_unsupported", f"this model has {what}, which the engine cannot run yet")
