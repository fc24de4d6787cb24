"""The model: scheduling, paged KV cache, forward pass, sampling, text. Knows no job, file format or Redis."""

from __future__ import annotations
