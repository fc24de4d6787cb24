"""The `runner` command, one file per group of verbs."""

from __future__ import annotations
