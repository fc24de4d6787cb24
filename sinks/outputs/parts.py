"""A folder of numbered parts with a manifest that says which of them count.

    part-00000.parquet   part-00001.parquet   _manifest.json

A part is written whole and then named in the manifest. After a kill between the two it is simply written again, under
the same number: so the parts that a manifest names have every row once. Readers of datasets skip names with `_` first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrunner.sinks.outputs.part_formats import PartFormat
    from streamrunner.sinks.outputs.record import ResultRecord
    from streamrunner.sinks.outputs.stores import Store

MANIFEST = "_manifest.json"
_PART = re.compile(r"part-\d{5,}\..+")


class Part(msgspec.Struct, frozen=True):
    """One part. digest: of which results are in it; end: where in the log it ends; both as the writer has them."""

    name: str
    rows: int
    bytes: int
    digest: str
    end: str


class Manifest(msgspec.Struct):
    """What `_manifest.json` holds; `complete` once the job has ended and all its rows are here."""

    version: int
    job: str
    format: str
    layout: str
    complete: bool = False
    parts: list[Part] = []


class Content(NamedTuple):
    """What a part is to hold."""

    records: Iterable[ResultRecord]
    rows: int
    digest: str
    end: str


class PartsFolder:
    """Parts of one output. owner: the job's ULID. layout: how rows are shared out; other parts do not count.

    A folder of another job is begun afresh, one with other things in it refused (SinkError `output_exists`).
    """

    compressed = False

    def __init__(self, store: Store, owner: str, layout: str, form: PartFormat) -> None:
        self.store = store
        self._owner = owner
        self._form = form
        self._manifest = Manifest(1, owner, form.suffix, layout)
        try:
            self._recover()
        except BaseException:
            store.close()
            raise

    @property
    def parts(self) -> list[Part]:
        """The parts that count."""
        return self._manifest.parts

    def put(self, number: int, content: Content) -> None:
        """Write part `number` (at most one behind the last), replacing the one that is there."""
        name = f"part-{number:05d}{self._form.suffix}"
        with self.store.written(name) as file:
            self._form.write(file, self._owner.encode(), content.records)
            num_bytes = file.tell()
        part = Part(name, content.rows, num_bytes, content.digest, content.end)
        self._manifest.parts[number : number + 1] = [part]
        self._manifest.complete = False
        self._save()

    def settle(self, num_parts: int, *, complete: bool) -> None:
        """Keep the first parts only, and say whether they are all."""
        if len(self.parts) != num_parts or self._manifest.complete != complete:
            del self._manifest.parts[num_parts:]
            self._manifest.complete = complete
            self._save()
        if complete:
            # Not before: a remote folder may have another writer, which is ahead of this one.
            self._delete_strays()

    def _delete_strays(self) -> None:
        kept = {part.name for part in self.parts}
        for name in self.store.sizes():
            if _PART.fullmatch(name) and name not in kept:
                self.store.delete(name)

    def close(self) -> None:
        """Give the folder to whoever wants it next."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _save(self) -> None:
        with self.store.written(MANIFEST) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self._manifest), indent=1) + b"\n")

    def _recover(self) -> None:
        sizes = self.store.sizes()
        foreign = sorted(name for name in sizes if name != MANIFEST and not _PART.fullmatch(name))
        if foreign:
            raise SinkError(
                "output_exists",
                f"{self.store.name} holds {foreign[0]}, which is no part of results: give `outputs` another path",
            )
        known = self._read_manifest() if MANIFEST in sizes else None
        if known is None or (known.job, known.format, known.layout) != (
            self._owner, self._manifest.format, self._manifest.layout,
        ):  # fmt: skip
            # Also tells at once whether anything can be written here.
            self._save()
            return
        # A part that somebody removed or cut is to be written again, under its number.
        self._manifest.parts = [
            part if sizes.get(part.name) == part.bytes else msgspec.structs.replace(part, digest="")
            for part in known.parts
        ]
        self._manifest.complete = known.complete

    def _read_manifest(self) -> Manifest | None:
        try:
            return msgspec.json.decode(self.store.read(MANIFEST), type=Manifest)
        except msgspec.DecodeError:
            return None
