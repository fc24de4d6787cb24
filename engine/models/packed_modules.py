"""transformers' linear layers replaced by packed ones, whose rows do not depend on how many rows there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from streamrunner.engine.models.packed_experts import pack_experts, steady_routers
from streamrunner.kernels.linear import PackedLinear

if TYPE_CHECKING:
    from streamrunner.kernels.linear import RowRule

Tensor = torch.Tensor


class PackedModule(nn.Module):
    """`nn.Linear` of transformers' code. weight, bias: shape and dtype only, for code that asks for them."""

    def __init__(self, packed: PackedLinear, bias: Tensor | None) -> None:
        super().__init__()
        self._packed = packed
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.weight = torch.empty((packed.out_features, packed.in_features), dtype=packed.dtype, device="meta")
        self.bias = None if bias is None else bias.to("meta")

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in]. Returns [..., out]."""
        return self._packed(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


def pack_linears(module: nn.Module) -> None:
    """Replace every linear layer below `module`, one after the other; their plain weights are let go. Experts too."""
    from transformers.pytorch_utils import Conv1D

    rules: dict[tuple[int, ...], RowRule] = {}
    pack_experts(module, rules)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            # Subclasses may do more than multiply.
            if type(child) is nn.Linear or type(child) is Conv1D:
                setattr(parent, name, _pack(child, type(child) is Conv1D, rules))
    steady_routers(module)


def _pack(child: Any, transposed: bool, rules: dict[tuple[int, ...], RowRule]) -> PackedModule:
    weight = child.weight.T.contiguous() if transposed else child.weight
    key = tuple(weight.shape)
    packed = PackedLinear(weight.detach(), None if child.bias is None else child.bias.detach(), rules.get(key))
    rules[key] = packed.rule
    return PackedModule(packed, child.bias)
