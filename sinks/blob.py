"""Results that are too large for a stream entry: kept beside it under their digest, and referred to.

    res      {"ref":{"sha256":"9f…","bytes":7340032}}      under the id of the terminal event, as every payload
    blobs    9f… → the payload                             a hash on the same server, in the same slot

Whoever reads results gets the payload; only who reads `res` by hand meets a reference.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.wire import decode_json, encode_json

# What a stream entry may hold: readers page through entries by the thousand.
MAX_PAYLOAD_BYTES = 1_000_000
_MARK = b'{"ref":'


class BlobRef(NamedTuple):
    """Where a large payload is, and how to tell that it is the one."""

    sha256: str
    num_bytes: int

    def encode(self) -> bytes:
        """The payload that stands in `res`."""
        return encode_json({"ref": {"sha256": self.sha256, "bytes": self.num_bytes}})

    def check(self, blob: bytes | None, job_id: str) -> bytes:
        """The payload, if this is it. Raises SinkError (`results_missing`)."""
        if blob is None or hashlib.sha256(blob).hexdigest() != self.sha256:
            what = "is gone" if blob is None else "is not what was written"
            raise SinkError("results_missing", f"a result of {job_id} of {self.num_bytes} bytes {what} ({self.sha256})")
        return blob


def reference_to(payload: bytes) -> BlobRef:
    """What refers to this payload."""
    return BlobRef(hashlib.sha256(payload).hexdigest(), len(payload))


def parse_reference(payload: bytes) -> BlobRef | None:
    """The reference that a payload is, or None for one that stands for itself."""
    if not payload.startswith(_MARK):
        return None
    ref = decode_json(payload)["ref"]
    return BlobRef(ref["sha256"], ref["bytes"])
