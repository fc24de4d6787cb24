"""What goes wrong when a connection is to be encrypted, in words that name the remedy."""

from __future__ import annotations

import re

from streamrunner.sinks.errors import SinkError

_UNVERIFIED = re.compile(r"certificate verify failed: ([^(]+?)\s*\(_ssl")
# What OpenSSL says when the other side speaks plain Redis, or hangs up on a client without a certificate.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")


def refuse_bad_certificate(error: Exception, address: str) -> None:
    """Raise SinkError log_tls where a connection failed over TLS: no waiting mends that. Else do nothing."""
    text = str(error)
    if (match := _UNVERIFIED.search(text)) is not None:
        raise SinkError(
            "log_tls",
            f"the certificate of {address} cannot be verified: {match[1]}. Name the authority that signed it with "
            "?ssl_ca_certs=/path/to/ca.pem in the Redis URL, and the host as the certificate does",
        ) from None
    if any(word in text.upper().replace(" ", "_") for word in _NO_TLS):
        raise SinkError(
            "log_tls", f"{address} does not speak TLS there: use redis:// in the Redis URL, or the port that has TLS"
        ) from None
