"""The Redis function library that is the only writer of the log."""

from __future__ import annotations
