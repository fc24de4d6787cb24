"""How an op is registered: schema from its annotations, a CPU body now, room for a GPU body beside it.

`torch.library.custom_op` would do the same, but its first call imports torch._dynamo (1.3-2 s measured, of a cold
start that may take 8) and it costs three times as much per call. `define` and `impl` pass the same four opchecks; a
name that is defined twice is an error instead of a silent replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

NAMESPACE = "streamrunner"
_registry: Any = torch.library  # untyped in torch
_LIBRARY = _registry.Library(NAMESPACE, "DEF")

F = TypeVar("F", bound=Callable[..., Any])


def cpu_op(*, mutates_args: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Register a function as `streamrunner::<its name>` for CPU tensors; the op takes the function's place.

    mutates_args must be exact: they are part of the schema that compilers and `opcheck` rely on.
    """

    def register(function: F) -> F:
        name = function.__name__
        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates_args))
        _LIBRARY.impl(name, function, "CPU")
        op: F = getattr(getattr(torch.ops, NAMESPACE), name).default
        return op

    return register


def fake_of(name: str) -> Callable[[F], F]:
    """Register what an op does to shapes: outputs by `new_empty(shape)`, nothing read."""

    def register(function: F) -> F:
        torch.library.register_fake(f"{NAMESPACE}::{name}", function, lib=_LIBRARY)
        return function

    return register
