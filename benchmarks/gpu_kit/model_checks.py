"""The model's forward pass: right beside transformers', the same in any batch, and near the card's floor."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gpu_kit.checks import Finding
from gpu_kit.model import Built, batch_of, build, captured, new_cache, num_blocks_for
from gpu_kit.speed import Rates, time_ms
from streamrunner.kernels.sampling import sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrunner.engine.models.llama import LlamaModel

Tensor = torch.Tensor

# Our logits may be this many times as far from float32's as transformers' own bf16 logits are.
_ERROR_RATIO = 2.0
_DECODED = 3


class Load(NamedTuple):
    """What is timed. context: slots a decoding sequence has, on average that of the 256-request yardstick."""

    sequences: int = 256
    context: int = 903
    prompts: int = 16
    prompt_tokens: int = 1024


TINY_LOAD = Load(3, 40, 2, 20)


class ModelTiming(NamedTuple):
    """One way to run one model. of_floor: the least time its bytes or products take on this card, over the time."""

    name: str
    time_ms: float
    tokens_per_s: float
    of_floor: float


def check_model(name: str, device: torch.device, *, tiny: bool) -> Iterator[Finding]:
    """Two layers of a model: logits of prefill and decode, then their bits alone and together."""
    built = build(name, device, torch.bfloat16, num_layers=2, tiny=tiny)
    token_ids = _token_ids(built.ours, 4, 75)
    with torch.inference_mode():
        ours = _logits(built.ours, token_ids)
        yield Finding("model", f"{name} logits", "bfloat16", _error_ratio(built, token_ids, ours), _ERROR_RATIO)
        # The CPU body of the product is a plain one, which promises nothing.
        limit = 0.0 if device.type == "cuda" else 1.0
        yield Finding("model", f"{name} any batch", "bfloat16", _differing(built.ours, token_ids), limit)


def _token_ids(model: LlamaModel, sequences: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, model.config.vocab_size, (sequences, length), generator=generator)
    return ids.to(model.embedding.device)


def _logits(model: LlamaModel, token_ids: Tensor, *, chunk: int = 0) -> Tensor:
    """[S, 1 + _DECODED, V]: of the prompt's last token, then of each decoded one; chunk cuts the prefill."""
    sequences, length = token_ids.shape
    cache = new_cache(model, num_blocks_for(sequences, length))
    prompt = length - _DECODED
    edges = [*range(0, prompt, chunk or prompt), prompt, *range(prompt + 1, length + 1)]
    steps = [model.forward(batch_of(token_ids, *edge), cache) for edge in itertools.pairwise(edges)]
    return torch.stack(steps[-1 - _DECODED :], 1)


def _error_ratio(built: Built, token_ids: Tensor, ours: Tensor) -> float:
    theirs = built.theirs(token_ids).logits[:, -1 - _DECODED :].float()
    exact = built.theirs.float()(token_ids).logits[:, -1 - _DECODED :]
    return float((ours - exact).pow(2).mean().sqrt() / (theirs - exact).pow(2).mean().sqrt())


def _differing(model: LlamaModel, token_ids: Tensor) -> float:
    """Share of rows whose bits change with the batch or with chunks, in deterministic mode."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        whole = _logits(model, token_ids)
        others = [_logits(model, token_ids[:1]), _logits(model, token_ids[:3], chunk=17)]
    finally:
        torch.use_deterministic_algorithms(mode=before)
    return max(float((other != whole[: len(other)]).any(-1).double().mean()) for other in others)


def time_model(name: str, device: torch.device, rates: Rates, *, tiny: bool) -> Iterator[ModelTiming]:
    """Prefill of a full budget, then a decode step with sampling: launched kernel by kernel, and as one graph."""
    load = TINY_LOAD if tiny else Load()
    model = build(name, device, torch.bfloat16, tiny=tiny).ours
    with torch.inference_mode():
        yield _prefill(name, model, load, rates)
        yield from _decode(name, model, load, rates)


def _prefill(name: str, model: LlamaModel, load: Load, rates: Rates) -> ModelTiming:
    token_ids = _token_ids(model, load.prompts, load.prompt_tokens)
    cache = new_cache(model, num_blocks_for(*token_ids.shape))
    batch = batch_of(token_ids, 0, load.prompt_tokens)
    taken = time_ms(lambda: model.forward(batch, cache), model.embedding.device)
    tokens = token_ids.numel()
    floor_ms = 2 * _num_weights(model) * tokens / rates.flops_per_s * 1e3
    return ModelTiming(f"{name} prefill", taken, tokens / taken * 1e3, floor_ms / taken)


def _decode(name: str, model: LlamaModel, load: Load, rates: Rates) -> Iterator[ModelTiming]:
    device, rows = model.embedding.device, load.sequences
    token_ids = _token_ids(model, rows, load.context)
    cache = new_cache(model, num_blocks_for(rows, load.context))
    batch = batch_of(token_ids, load.context - 1, load.context)
    settings = torch.tensor([[1.0, 0.0, 1.0, 0.0]], device=device).repeat(rows, 1)
    keys = torch.arange(3 * rows, device=device).view(rows, 3)

    def step() -> Tensor:
        return sample(model.forward(batch, cache), settings, keys)

    num_bytes = 2 * _num_weights(model) + rows * load.context * model.cache_bytes_per_token
    floor_ms = num_bytes / rates.bytes_per_s * 1e3
    ways: list[tuple[str, Any]] = [("decode, launched", step)]
    if device.type == "cuda":
        ways.append(("decode, one graph", captured(step)))
    for way, run in ways:
        taken = time_ms(run, device)
        yield ModelTiming(f"{name} {way}", taken, rows / taken * 1e3, floor_ms / taken)


def _num_weights(model: LlamaModel) -> int:
    """Numbers that a step multiplies with; the embedding is only looked up."""
    # What the lane built are DeviceLinears, whose weight is there to be counted.
    linears: list[Any] = [model.lm_head]
    for layer in model.layers:
        linears += [layer.qkv, layer.o, layer.gate_up, layer.down]
    return sum(one.weight.numel() for one in linears)
