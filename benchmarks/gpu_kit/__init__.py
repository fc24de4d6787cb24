"""Parts of the GPU lane: the ops with their references, the checks, and the engine runs."""

from __future__ import annotations
