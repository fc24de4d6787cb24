"""The private server that runs when no Redis is configured: its life cycle, locks and repair."""

from __future__ import annotations
