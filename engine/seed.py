"""Where the noise of a request begins when it names no seed of its own."""

from __future__ import annotations

import hashlib


def request_seed(seed: int, index: int, call: int = 0) -> int:
    """63 bits of BLAKE2b over the run's seed, the request's place in it and, from the second call on, the call.

    So requests differ, calls differ, and a run that is repeated is the same, in any batch and any order.
    """
    name = f"{seed}:{index}" if call == 0 else f"{seed}:{index}:{call}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
