"""The writer key: what a backup host needs to sign documents, to name objects, and to read documents.

It is one line of text, in a file of its own; lines that begin with `#` are comments:

    jsbackup-writer-1:<repository>:<authority>:<documents>:<signing>:<checksum>

    repository   the id of the repository; the key is of no use for another
    authority    64 hex digits, the public key that says who signs there: trust in the repository rests on it, and with
                 it the line carries what a store could otherwise lie about
    documents    64 hex digits, secret: names of objects and the identity that opens documents come from it
                 (`secret.py`); empty where the repository is not encrypted
    signing      64 hex digits, secret: the seed of the Ed25519 key that signs
    checksum     the first 8 hex digits of SHA-256 over all before its colon, against slips of the hand
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from jsbackup.errors import UsageError
from jsbackup.repository.crypto.signing import Signatory

__all__ = ["WriterKey", "decode_writer_key", "encode_writer_key"]

_PREFIX = "jsbackup-writer-"
_LINE = re.compile(
    r"jsbackup-writer-1:([0-9A-Za-z-]{1,64}):([0-9a-f]{64}):((?:[0-9a-f]{64})?):([0-9a-f]{64}):([0-9a-f]{8})"
)
_COMMENT = "# jsbackup's key for making backups. It cannot read messages, but it signs backups: keep it secret."


@dataclass(frozen=True, slots=True, repr=False)
class WriterKey:
    """`authority` is public; `documents` (None in a plain repository) and `signing` are 32 secret bytes each."""

    repository: str
    authority: str
    documents: bytes | None
    signing: bytes

    @property
    def signatory(self) -> Signatory:
        return Signatory(self.signing)


def encode_writer_key(key: WriterKey) -> str:
    """Return the text of a writer key file."""
    documents = key.documents.hex() if key.documents else ""
    line = f"{_PREFIX}1:{key.repository}:{key.authority}:{documents}:{key.signing.hex()}"
    return f"{_COMMENT}\n{line}:{_checksum(line)}\n"


def decode_writer_key(text: str, what: str) -> WriterKey:
    """Parse a writer key file. Raises `UsageError`, which does not repeat the text; `what` names the source in
    errors.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) != 1 or not lines[0].startswith(_PREFIX):
        raise UsageError(
            f"the {what} is not a writer key",
            hint="JSBACKUP_WRITER_KEY_FILE names its file, JSBACKUP_WRITER_KEY is the text in it. "
            "`jsbackup init --writer-key FILE` makes one.",
        )
    match = _LINE.fullmatch(lines[0])
    if match is None or _checksum(lines[0].rpartition(":")[0]) != match[5]:
        raise UsageError(f"the {what} is damaged, or that of a newer jsbackup", hint="Bring it back from a copy.")
    documents = bytes.fromhex(match[3]) if match[3] else None
    return WriterKey(match[1], match[2], documents, bytes.fromhex(match[4]))


def _checksum(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()[:8]
