"""Where results go: files that are their own checkpoint, so that every row is in them once, whatever was killed."""

from __future__ import annotations
