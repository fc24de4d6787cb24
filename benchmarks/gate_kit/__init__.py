"""Parts of the kernel gate: what production calls, what that makes Triton compile, what comes out."""

from __future__ import annotations
