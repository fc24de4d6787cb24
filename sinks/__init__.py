"""The log and where it goes: event vocabulary, Redis log, embedded server, exporters. Knows no other room."""

from __future__ import annotations
