"""What must hold after the kills. Pure: raw streams, output lines and side file in, findings out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos_kit.streams import choice_deltas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos_kit.streams import Delta, Streams

Texts = dict[str, list[str]]


class Check(NamedTuple):
    """One promise: what is counted, and the offenders. It holds when there are none."""

    name: str
    offenders: list[str]


class Admission(NamedTuple):
    """One line of the side file. `not_before` is the latest time, Unix ms, at which it is known to have been absent."""

    job_id: str
    row: int
    choice: int
    attempt: int
    claim: int
    num_resumed: int
    pid: int
    not_before: int


class Recomputed(NamedTuple):
    """What the kills cost, in tokens."""

    prefilled: int
    decoded_twice: int
    unwritten: int


def parse_admission(line: str, not_before: int) -> Admission:
    """Read one side file line: `<job> <row> <choice> <attempt> <claim> <resumed tokens> <pid>`."""
    job_id, *numbers = line.split()
    row, choice, attempt, claim, num_resumed, pid = (int(number) for number in numbers)
    return Admission(job_id, row, choice, attempt, claim, num_resumed, pid, not_before)


def texts_of(lines: Sequence[Mapping[str, Any]]) -> Texts:
    """The texts of all choices by custom_id; a failed row counts as no text."""
    found: Texts = {}
    for line in lines:
        response = line["response"] or {"body": {}}
        choices = sorted(response["body"].get("choices", ()), key=lambda choice: choice["index"])
        found[line["custom_id"]] = [choice["message"]["content"] for choice in choices]
    return found


def check_job(
    streams: Streams,
    lines: Sequence[Mapping[str, Any]],
    admissions: Sequence[Admission],
    undisturbed: Texts,
) -> list[Check]:
    """All promises about one finished job."""
    return [
        Check("seqs missing from the log", _gaps(streams)),
        Check("rows without a result", _lost(streams, lines, undisturbed)),
        Check("rows with other than one terminal event", _not_one_terminal(streams)),
        Check("terminal events without a payload", _without_payload(streams)),
        Check("finished rows admitted again", admitted_after_their_end(streams, admissions)),
        Check("output lines too many, or with an id twice", _surplus_lines(streams, lines)),
        Check("texts that differ from the undisturbed run", _different(texts_of(lines), undisturbed)),
        Check("streamed texts that differ from the result", _streamed_differently(streams, texts_of(lines))),
    ]


def _gaps(streams: Streams) -> list[str]:
    seqs = [event.seq for event in streams.events]
    return [f"seq {want} is {seq}" for want, seq in enumerate(seqs, 1) if seq != want][:1]


def _lost(streams: Streams, lines: Sequence[Mapping[str, Any]], undisturbed: Texts) -> list[str]:
    in_log = {event.data["custom_id"] for event in streams.terminals}
    in_file = {line["custom_id"] for line in lines}
    return sorted(set(undisturbed) - (in_log & in_file))


def _not_one_terminal(streams: Streams) -> list[str]:
    counts = Counter(event.data["row"] for event in streams.terminals)
    return [f"row {row}: {counts[row]}" for row in range(streams.num_rows) if counts[row] != 1]


def _without_payload(streams: Streams) -> list[str]:
    ids = [f"{event.seq}-{event.gen}" for event in streams.terminals]
    return [entry_id for entry_id in ids if entry_id not in streams.payloads]


def admitted_after_their_end(streams: Streams, admissions: Sequence[Admission]) -> list[str]:
    """Admissions that happened, beyond doubt, after the row's terminal event; or twice under one claim."""
    ended = {event.data["row"]: event.time for event in streams.terminals}
    late = [
        f"row {one.row} choice {one.choice} by pid {one.pid}"
        for one in admissions
        if one.row in ended and one.not_before > ended[one.row]
    ]
    counts = Counter((one.row, one.choice, one.claim) for one in admissions)
    return late + [
        f"row {row} choice {choice} twice under claim {claim}" for (row, choice, claim), n in counts.items() if n > 1
    ]


def _surplus_lines(streams: Streams, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    repeated = [
        f"{name} {value}"
        for name in ("custom_id", "id")
        for value, count in Counter(line[name] for line in lines).items()
        if count > 1
    ]
    surplus = [] if len(lines) == streams.num_rows else [f"{len(lines)} lines for {streams.num_rows} rows"]
    return repeated + surplus


def _different(texts: Texts, undisturbed: Texts) -> list[str]:
    return [name for name, wanted in undisturbed.items() if texts.get(name) != wanted]


def _streamed_differently(streams: Streams, texts: Texts) -> list[str]:
    names = {event.data["row"]: event.data["custom_id"] for event in streams.terminals}
    offenders = []
    for (row, choice), deltas in choice_deltas(streams).items():
        text = overlay(deltas)
        result = texts.get(names.get(row, ""), [])
        if text is not None and choice < len(result) and text != result[choice]:
            offenders.append(f"row {row} choice {choice}")
    return offenders


def overlay(deltas: Sequence[Delta]) -> str | None:
    """The text that a reader of the step streams has: the highest claim only, without repeats.

    None where the first tokens were trimmed before this reader came.
    """
    claim = max(delta.claim for delta in deltas)
    text, position = "", 0
    for delta in sorted((one for one in deltas if one.claim == claim), key=lambda one: one.at):
        if delta.at > position:
            return None
        # What a writer sends again ends where its earlier copy ended, or contains it from position 0 on.
        if delta.at == 0 and position:
            text, position = (
                (delta.text, len(delta.token_ids)) if len(delta.token_ids) >= position else (text, position)
            )
        elif delta.at == position:
            text, position = text + delta.text, position + len(delta.token_ids)
    return text


def count_recomputed(streams: Streams, admissions: Sequence[Admission], kill_times: Sequence[int]) -> Recomputed:
    """Tokens that were worked on again.

    prefilled: durable output tokens that a new process read back in (a prefill, no decoding).
    decoded_twice: durable tokens that a new process did not take over, so that it decoded them again.
    unwritten: an estimate of what was decoded but not yet in the log when the process died: the rate of the second
    before the kill, for the time between the last step entry and the kill.
    """
    by_choice = choice_deltas(streams)
    prefilled = twice = 0
    for one in admissions:
        earlier = [delta for delta in by_choice.get((one.row, one.choice), ()) if delta.claim < one.claim]
        durable = max((delta.at + len(delta.token_ids) for delta in earlier), default=0)
        prefilled += one.num_resumed
        twice += max(0, durable - one.num_resumed)
    return Recomputed(prefilled, twice, sum(_unwritten(streams, time) for time in kill_times))


def _unwritten(streams: Streams, killed: int) -> int:
    recent = [delta for delta in streams.deltas if killed - 1000 <= delta.time <= killed and delta.at > 0]
    if not recent:
        return 0
    tokens = sum(len(delta.token_ids) for delta in recent)
    return round(tokens / 1000 * (killed - max(delta.time for delta in recent)))
