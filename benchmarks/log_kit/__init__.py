"""Parts of `bench_log.py`."""

from __future__ import annotations
