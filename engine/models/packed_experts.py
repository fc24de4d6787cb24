"""Mixtures of experts of transformers' code over packed weights: a token's sum does not depend on who else is there.

transformers multiplies the tokens of one expert together, by plain weights; how many there are would change the bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from streamrunner.kernels.linear import PackedLinear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrunner.kernels.linear import RowRule

Tensor = torch.Tensor
Rules = dict[tuple[int, ...], "RowRule"]

EXPERTS_NAME = "streamrunner_packed"
# Calls of one size have one order of sums; and torch's vector loops leave no rest over so many rows.
_ROWS = 16


class _Expert(NamedTuple):
    gate_up: PackedLinear
    down: PackedLinear


def register_experts() -> None:
    """Tell transformers of `EXPERTS_NAME`, to be named when a model is loaded."""
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(EXPERTS_NAME, _run_experts)


def pack_experts(module: nn.Module, rules: Rules) -> None:
    """Pack the experts below `module` that are laid out as gate and up, then down; their plain weights are let go."""
    for one in module.modules():
        experts: Any = one
        if _is_packable(one):
            experts.packed_experts = [
                _Expert(_packed(gate_up, rules), _packed(down, rules))
                for gate_up, down in zip(experts.gate_up_proj.detach(), experts.down_proj.detach(), strict=True)
            ]
            for name in ("gate_up_proj", "down_proj"):
                setattr(one, name, nn.Parameter(getattr(one, name).detach().to("meta"), requires_grad=False))


def steady_routers(module: nn.Module) -> None:
    """Weights below `module` that code multiplies by without a linear layer, as routers do, give a row its own bits."""
    for one in module.modules():
        weight = getattr(one, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() == 2 and not isinstance(one, (nn.Embedding, nn.Linear)):
            del one.weight
            one.weight = weight.detach().as_subclass(_SteadyWeight)


def _is_packable(module: nn.Module) -> bool:
    shaped = all(
        isinstance(getattr(module, name, None), nn.Parameter) and getattr(module, name).dim() == 3
        for name in ("gate_up_proj", "down_proj")
    )
    wanted = {"has_gate": True, "has_bias": False, "is_transposed": False, "has_post_expert_norm": False}
    return shaped and all(getattr(module, name, None) is value for name, value in wanted.items())


def _packed(weight: Tensor, rules: Rules) -> PackedLinear:
    key = tuple(weight.shape)
    packed = PackedLinear(weight, None, rules.get(key))
    rules[key] = packed.rule
    return packed


def _run_experts(module: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' experts function. hidden: [T, H] · top_k_index, top_k_weights: [T, K]. Returns [T, H]."""
    packed: list[_Expert] | None = getattr(module, "packed_experts", None)
    if packed is None:
        from transformers.integrations.moe import batched_mm_experts_forward

        plain: Tensor = batched_mm_experts_forward(module, hidden, top_k_index, top_k_weights)
        return plain
    out = torch.zeros_like(hidden)
    for index, expert in enumerate(packed):
        tokens, places = torch.where(top_k_index == index)
        count = tokens.shape[0]
        if count == 0:
            continue
        rows = nn.functional.pad(hidden[tokens], (0, 0, 0, -count % _ROWS))
        computed = expert.down(module._apply_gate(expert.gate_up(rows)))[:count]  # noqa: SLF001 - the class's own hook
        out.index_add_(0, tokens, (computed * top_k_weights[tokens, places, None]).to(out.dtype))
    return out


class _SteadyWeight(torch.Tensor):
    """A plain weight [out, in] whose products are made of calls of one size."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - how torch documents subclasses
            if func is nn.functional.linear and len(args) == 2 and not kwargs:
                return _steady_linear(*args)
            return func(*args, **(kwargs or {}))


def _steady_linear(x: Tensor, weight: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    padded = nn.functional.pad(rows, (0, 0, 0, -rows.shape[0] % _ROWS))
    out = torch.cat([nn.functional.linear(part, weight) for part in torch.split(padded, _ROWS)])
    return out[: rows.shape[0]].view(*x.shape[:-1], weight.shape[0])
