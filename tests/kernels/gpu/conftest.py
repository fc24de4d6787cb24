"""Tests of the Triton bodies in Triton's interpreter: `TRITON_INTERPRET=1 pytest tests/kernels/gpu`.

The interpreter is chosen when a kernel module is imported, for a whole process, so these files are collected only
under that switch; `tests/kernels/test_interpreted.py` runs them in a process of their own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from streamrunner.kernels.op import INTERPRETED

collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]

POISON = {True: float("nan"), False: -7}


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN (floats) or -7: what a kernel forgot to write shows."""
    plain = torch.Tensor.new_empty

    def new_empty(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        fresh = plain(self, *args, **kwargs)
        return fresh.fill_(POISON[fresh.is_floating_point()]) if fresh.device.type == "cpu" else fresh

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


@pytest.fixture
def deterministic() -> Any:
    """torch's deterministic mode, which is the batch-invariant one of our kernels."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)
