"""Model families: one file per architecture, forward passes over packed tokens."""

from __future__ import annotations
