"""The keys that the user gave, and what they open in a repository.

Apart from what uses them (`opening.py`, `keys.py`), so that a plain repository is opened without any cryptography.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.repository.document import BARE, Envelope
from jsbackup.repository.objects import PLAIN, Sealing

if TYPE_CHECKING:
    from jsbackup.repository.crypto import age
    from jsbackup.repository.crypto.keys import RepositorySecret
    from jsbackup.repository.crypto.signing import WriterKey

__all__ = ["NEEDS_IDENTITY", "NEEDS_KEY", "NEEDS_WRITER", "NO_KEYS", "Access", "GivenKeys"]


NEEDS_WRITER = "Give the writer key with --writer-key FILE or JSBACKUP_WRITER_KEY_FILE."
NEEDS_KEY = (
    "Give --writer-key FILE for backups, lists and checks, --identity FILE or --passphrase-file FILE to read messages."
)
NEEDS_IDENTITY = "Give the identity with --identity FILE, or the passphrase with --passphrase-file FILE."


@dataclass(frozen=True, slots=True, repr=False)
class GivenKeys:
    """The keys that the user gave. `expect_signer` is the authority's public key, 64 hex digits; not a secret."""

    writer: WriterKey | None = None
    identities: tuple[age.Identity, ...] = ()
    passphrase: str | None = None
    expect_signer: str | None = None

    @property
    def reads(self) -> bool:
        """Whether a key was given that may read messages."""
        return bool(self.identities) or self.passphrase is not None


NO_KEYS = GivenKeys()


@dataclass(frozen=True, slots=True)
class Access:
    """How content and documents are read and written with the given keys.

    `page_envelope` is that of pages, which are not signed: signed manifests name their SHA-256. `secret` is set if a
    key that reads an encrypted repository was given.
    """

    sealing: Sealing = PLAIN
    envelope: Envelope = BARE
    page_envelope: Envelope = BARE
    secret: RepositorySecret | None = None
