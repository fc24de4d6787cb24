"""Parts of the workers benchmark: an engine that sleeps, and one worker process around it."""

from __future__ import annotations
