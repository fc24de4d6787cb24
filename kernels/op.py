"""How an op is registered: schema from its annotations, a CPU body beside it, a Triton body that is found when called.

`torch.library.custom_op` would do the same, but its first call imports torch._dynamo (1.3-2 s measured, of a cold
start that may take 8) and it costs three times as much per call. `define` and `impl` pass the same four opchecks; a
name that is defined twice is an error instead of a silent replacement.

With TRITON_INTERPRET=1, Triton's own switch for running kernels without a GPU, CPU tensors take the Triton bodies too:
whatever runs on the CPU then tests the kernels.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch

NAMESPACE = "streamrunner"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_registry: Any = torch.library  # untyped in torch
_LIBRARY = _registry.Library(NAMESPACE, "DEF")

F = TypeVar("F", bound=Callable[..., Any])


def cpu_op(*, mutates_args: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Register a function as `streamrunner::<its name>` for CPU tensors; the op takes the function's place.

    CUDA tensors take the Triton body of the same name (`kernels/gpu/bodies.py`).
    mutates_args must be exact: they are part of the schema that compilers and `opcheck` rely on.
    """

    def register(function: F) -> F:
        name = function.__name__
        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates_args))
        _LIBRARY.impl(name, _triton_body(name, function) if INTERPRETED else function, "CPU")
        _LIBRARY.impl(name, _triton_body(name, None), "CUDA")
        op: F = getattr(getattr(torch.ops, NAMESPACE), name).default
        return op

    return register


def fake_of(name: str) -> Callable[[F], F]:
    """Register what an op does to shapes: outputs by `new_empty(shape)`, nothing read."""

    def register(function: F) -> F:
        torch.library.register_fake(f"{NAMESPACE}::{name}", function, lib=_LIBRARY)
        return function

    return register


def _triton_body(name: str, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """The op's Triton body, looked up at its first call; `otherwise` where it has none."""

    @functools.cache
    def body() -> Callable[..., Any]:
        from streamrunner.kernels.gpu.bodies import BODIES

        found: Callable[..., Any] | None = BODIES.get(name, otherwise)
        if found is None:
            raise RuntimeError(f"the op {name!r} runs on the CPU only: it has no Triton body")
        return found

    def call(*args: Any, **kwargs: Any) -> Any:
        return body()(*args, **kwargs)

    return call
