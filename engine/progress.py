"""Progress of a call that gives everything at its end: rows and output tokens, on a terminal only."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrunner.engine.request_output import RequestOutput


@contextmanager
def progress_bar(total: int | None, *, shown: bool) -> Iterator[Callable[[RequestOutput], None]]:
    """Gives what is to be called with every finished result. A prompt counts once, however many choices it has."""
    if not (shown and sys.stderr.isatty()):
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="prompt", dynamic_ncols=True) as bar:
        yield _Counter(bar)


class _Counter:
    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._num_tokens = 0

    def __call__(self, output: RequestOutput) -> None:
        self._num_tokens += sum(len(choice.token_ids) for choice in output.outputs)
        elapsed = self._bar.format_dict["elapsed"]
        self._bar.set_postfix_str(f"{self._num_tokens / max(elapsed, 1e-6):.1f} tok/s out", refresh=False)
        self._bar.update()
