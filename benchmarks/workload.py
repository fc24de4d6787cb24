"""Prompts that every engine gets: 20 to 200 common words each, the same in every run."""

from __future__ import annotations

import random

_TEXT = """
river stone market teacher garden winter signal copper engine letter mountain bridge harbor planet forest music
doctor village window history science painter kitchen captain diamond thunder library festival journey orange silver
shadow
"""
_WORDS = _TEXT.split()
_START = "Summarise the following notes in one paragraph: "


def make_prompts(count: int) -> list[str]:
    """The first `count` of them."""
    pick = random.Random(0)
    return [_START + " ".join(pick.choice(_WORDS) for _ in range(pick.randint(20, 200))) for _ in range(count)]
