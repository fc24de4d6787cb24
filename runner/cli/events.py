"""`runner events`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from streamrunner.runner.cli.common import FoundJob, Where, found_job, where_options
from streamrunner.runner.errors import ExitCode
from streamrunner.runner.terminal import clean
from streamrunner.sinks.wire import LogEntry, StepEntry

if TYPE_CHECKING:
    from streamrunner.runner.watcher import Watcher
    from streamrunner.sinks.reader import Item

_POLL_MS = 1000
_PAYLOAD_TYPES = ("request.completed", "request.failed")


@click.command()
@click.argument("job", default="last")
@click.option("--follow", "-f", is_flag=True, help="Stay until the job ends.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with a cursor to go on from.")
@click.option("--since", metavar="CURSOR", help="Begin behind the line that had this cursor.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only these types (repeatable), e.g. tokens.")
@where_options
def events(where: Where, job: str, follow: bool, as_json: bool, since: str | None, types: tuple[str, ...]) -> int:
    """Print a job's events, token by token, from any point on.

    \b
    runner events last --follow
    runner events last --follow --json --type tokens
    runner events last --json --since "$CURSOR"
    """
    from streamrunner.runner.watcher import Watcher
    from streamrunner.sinks.reader import Cursor

    with found_job(where, job) as found:
        cursor = Cursor.parse(since) if since else None
        watcher = Watcher(found.server, found.keys, cursor=cursor, tokens=True)
        return _Printer(found, as_json, frozenset(types)).run(watcher, follow)


class _Printer:
    def __init__(self, found: FoundJob, as_json: bool, types: frozenset[str]) -> None:
        self._found = found
        self._as_json = as_json
        self._types = types
        self._ended = False
        self._client = found.server.client()

    def run(self, watcher: Watcher, follow: bool) -> int:
        while True:
            answer = watcher.poll(_POLL_MS if follow else None)
            if not isinstance(answer, list):
                self._write({"type": "resync", "data": {"reason": answer.reason}})
                continue
            for item in answer:
                self._show(item)
            sys.stdout.flush()
            if (self._ended or not follow) and not answer:
                return ExitCode.OK
            if not answer and watcher.abandoned():
                click.echo(
                    "no worker has held this job for 20 s: `runner submit` the same file goes on with it", err=True
                )
                return ExitCode.STOPPED

    def _show(self, item: Item) -> None:
        entry = item.entry
        kind = entry.type if isinstance(entry, LogEntry) else "tokens"
        self._ended = self._ended or kind == "job.ended"
        if self._types and kind not in self._types:
            return
        self._write(self._line(entry) | {"cursor": str(item.cursor)})

    def _line(self, entry: LogEntry | StepEntry) -> dict[str, Any]:
        if isinstance(entry, StepEntry):
            return _token_line(entry)
        data = self._with_payload(entry) if entry.type in _PAYLOAD_TYPES else entry.data
        return {"seq": entry.seq, "type": entry.type, "v": entry.v, "time": entry.time, "by": entry.by, "data": data}

    def _with_payload(self, entry: LogEntry) -> dict[str, Any]:
        from streamrunner.sinks.reader import read_payloads
        from streamrunner.sinks.wire import decode_json

        payload = read_payloads(self._client, self._found.keys, [entry]).get(entry.id)
        choices = decode_json(payload).get("choices") if payload else None
        return {**entry.data, "choices": choices} if choices is not None else entry.data

    def _write(self, line: dict[str, Any]) -> None:
        if self._as_json:
            sys.stdout.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        else:
            sys.stdout.write(clean(_human(line)) + "\n")


def _token_line(entry: StepEntry) -> dict[str, Any]:
    deltas = [{name: value for name, value in delta._asdict().items() if value is not None} for delta in entry.deltas]
    return {
        "type": "tokens", "v": 1, "time": entry.time, "by": entry.worker, "step": f"{entry.epoch}-{entry.n}",
        "data": {"deltas": deltas},
    }  # fmt: skip


def _human(line: dict[str, Any]) -> str:
    if line["type"] == "tokens":
        texts = (f"{one['row']}.{one['choice']}: {one['text']!r}" for one in line["data"]["deltas"])
        return f"tokens {line['step']}  " + "  ".join(texts)
    shown = {name: value for name, value in line["data"].items() if name not in ("spec", "identity", "choices")}
    return f"{line.get('seq', ''):>6} {line['type']}  {json.dumps(shown, ensure_ascii=False)}"
