"""Parts of the chaos run. Nothing here imports streamrunner: it judges the log from outside."""

from __future__ import annotations
