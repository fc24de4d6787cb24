"""What holds for every test: nothing reaches for a network, and nothing of the developer's own set-up leaks in."""

from __future__ import annotations

import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
for name in ("RUNNER_DATA_DIR", "RUNNER_ADMISSIONS_FILE"):
    os.environ.pop(name, None)
