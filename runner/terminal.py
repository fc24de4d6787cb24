"""Text from rows and models made safe to print: a terminal obeys escape sequences, wherever they come from."""

from __future__ import annotations

import re

# One alternative a line, longest first. Strings (OSC, DCS, APC, PM, SOS) end at ST or BEL, and an
# unterminated one at the end of the text: a terminal would swallow that much too. Half characters come from file names
# that are no UTF-8; they cannot be written at all.
_UNSAFE = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\|(?=\x1b)|\Z)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*(?:[@-~]|\Z)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"
)


def clean(text: str) -> str:
    """The text without escape sequences and control characters; newlines and tabs stay."""
    return _UNSAFE.sub("", text)
