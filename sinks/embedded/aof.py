"""Reading the append-only file: commands in the wire format, those of one function call between MULTI and EXEC."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap
    from pathlib import Path

_COMMAND = re.compile(rb"\*[1-9]\d{0,6}\r\n\$\d{1,9}\r\n")
_HEAD = re.compile(rb"[*$](\d{1,10})\r\n")


def last_file(folder: Path) -> Path | None:
    """Return the file that the server appends to, as its manifest tells; None when there is none."""
    manifests = sorted(folder.glob("*.manifest"))
    names: dict[int, str] = {}
    for line in manifests[-1].read_text(encoding="utf-8", errors="replace").splitlines() if manifests else ():
        words = shlex.split(line, comments=True)
        fields = dict(zip(words[::2], words[1::2], strict=False))
        if fields.get("type") == "i" and fields.get("seq", "").isdigit():
            names[int(fields["seq"])] = fields["file"]
    return folder / names[max(names)] if names else None


def whole_group_after(data: bytes | mmap, start: int) -> int | None:
    """Return where, behind the damaged group at `start`, a whole group begins; None when nothing whole follows.

    A group is MULTI … EXEC, or a command that stands alone. This tells a tail that a power cut left (nothing whole
    behind it, and nothing in it was acknowledged) from damage in the middle (what follows is worth keeping).
    Data of ours is JSON, which cannot hold line breaks, so commands are never mistaken inside it.
    """
    position = _break_of(data, start)
    alone: int | None = None
    while (found := _next_command(data, position)) is not None:
        begin, name, position = found
        if name == b"multi":
            if alone is not None:
                return alone
            if _closes(data, position):
                return begin
            position = _break_of(data, begin)
        elif name == b"exec":
            # The commands since the break belonged to the damaged group.
            alone = None
        elif alone is None:
            alone = begin
    return alone


def _read_command(data: bytes | mmap, position: int) -> tuple[bytes, int] | None:
    """Return a command's name in lower case and its end; None unless it is whole."""
    head = _HEAD.match(data, position)
    if head is None or data[position] != ord("*"):
        return None
    name, position = b"", head.end()
    for index in range(int(head[1])):
        part = _HEAD.match(data, position)
        if part is None or data[position] != ord("$"):
            return None
        end = part.end() + int(part[1])
        if data[end : end + 2] != b"\r\n":
            return None
        if index == 0:
            name = data[part.end() : end].lower()
        position = end + 2
    return name, position


def _break_of(data: bytes | mmap, start: int) -> int:
    """Return where the damaged group at `start` breaks: at what is no command, or at a misplaced MULTI or EXEC."""
    position, in_group = start, False
    while (command := _read_command(data, position)) is not None:
        name, end = command
        if name == b"exec":
            return end
        if name == b"multi" and in_group:
            return position
        in_group = in_group or name == b"multi"
        position = end
    return position


def _next_command(data: bytes | mmap, position: int) -> tuple[int, bytes, int] | None:
    """Return begin, name and end of the first whole command from a position on, skipping what is none."""
    while (match := _COMMAND.search(data, position)) is not None:
        command = _read_command(data, match.start())
        if command is not None:
            return match.start(), *command
        position = match.start() + 1
    return None


def _closes(data: bytes | mmap, position: int) -> bool:
    """Tell whether a group whose MULTI ends at a position is whole."""
    while (command := _read_command(data, position)) is not None:
        name, position = command
        if name in (b"exec", b"multi"):
            return name == b"exec"
    return False
