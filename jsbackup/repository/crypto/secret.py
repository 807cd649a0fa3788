"""The secrets of an encrypted repository, and how they are derived.

    repository secret           an age identity, made by `init`; opens every object, and everything below comes from it
    ├── authority               Ed25519 seed; says who is a writer (`writers.py`), signs nothing else
    └── documents               32 bytes, in the writer key too
        ├── names               HMAC-SHA-256 key; what stands for digests and streams in keys
        └── identity            an age identity; opens documents (manifests, catalogs), nothing else

Each arrow is HKDF with SHA-256 (RFC 5869), no salt, 32 bytes; `info` is "jsbackup 1 " and the name above. The input at
the top is the identity's text, AGE-SECRET-KEY-1 and so on in capitals.

Names are HMACs in hex: over "digest\\0" and the digest; over "stream\\0" and the stream's name, the first 32 digits;
over "incarnation\\0", the name, "\\0" and the incarnation, the first 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.repository.crypto.age import Identity, age_identity
from jsbackup.repository.crypto.signing import Signatory, derive

__all__ = ["DocumentsSecret", "RepositorySecret"]


def _derive(secret: bytes, name: str) -> bytes:
    return derive(secret, f"jsbackup 1 {name}")


@dataclass(frozen=True, slots=True, repr=False)
class DocumentsSecret:
    """The secret that opens documents and names objects; 32 bytes."""

    value: bytes

    @property
    def identity(self) -> Identity:
        return age_identity(_derive(self.value, "identity"))

    @property
    def names(self) -> bytes:
        return _derive(self.value, "names")


@dataclass(frozen=True, slots=True, repr=False)
class RepositorySecret:
    """The secret that opens everything."""

    identity: Identity

    @property
    def authority(self) -> Signatory:
        return Signatory(_derive(self._input, "authority"))

    @property
    def documents(self) -> DocumentsSecret:
        return DocumentsSecret(_derive(self._input, "documents"))

    @property
    def _input(self) -> bytes:
        assert self.identity.text is not None, "a repository's identity is an age identity"
        return self.identity.text.encode()
