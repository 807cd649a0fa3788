"""Make a TLS context from the configured files."""

from __future__ import annotations

import ssl

from jsbackup.config import Tls
from jsbackup.errors import UsageError

__all__ = ["tls_context"]


def tls_context(tls: Tls) -> ssl.SSLContext | None:
    """Return the context for these files; None (the system's authorities) without any. Raises UsageError."""
    if tls.ca is None and tls.cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"the TLS certificate authority {tls.ca} holds no certificate in PEM form") from error
    # Python 3.13 turns this on. Many private authorities sign without the key identifiers that it requires, and such
    # certificates work with the nats CLI.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.cert is not None:
        try:
            # With a callback for the password; otherwise OpenSSL asks for it on the terminal.
            context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise UsageError(
                f"the TLS certificate {tls.cert} and the key {tls.key} cannot be used",
                hint="Both have to be PEM files that belong together, and the key must not be encrypted.",
            ) from error
    return context
