"""The key file of an obfuscated copy, as `nats backup lookup` (natscli 0.5.1) reads and writes it.

    {"version": 1, "secret": "<32 bytes in base64>", "map": {"<hash>": "<token>", …}}

The map leads back from hashes. Every entry is checked against the secret when a file is read, as by the nats CLI, which
refuses a file with an entry that does not fit. A token that is not UTF-8 has no place in JSON, so it is hashed and not
listed.
"""

from __future__ import annotations

import base64
import binascii
import json

from jsbackup.errors import FormatError
from jsbackup.strict_json import read_object
from jsbackup.transforms.obfuscate.names import SECRET_BYTES, ObfuscatedNames, keyed_hash

__all__ = ["MAX_KEY_FILE_BYTES", "decode_keys", "encode_keys", "listed_names"]

MAX_KEY_FILE_BYTES = 1 << 30
_VERSION = 1


def listed_names(names: ObfuscatedNames) -> dict[str, str]:
    """Return the tokens by their hashes, as they stand in the file. Raises FormatError if two have one hash."""
    listed: dict[str, str] = {}
    for token, hashed in sorted(dict(names.hashes).items()):
        if not _is_unicode(token):
            continue
        if hashed in listed:
            raise FormatError("two names have the same hash", hint="Use another key file.")
        listed[hashed] = token
    return dict(sorted(listed.items()))


def encode_keys(names: ObfuscatedNames) -> bytes:
    """Encode the file. Raises FormatError as `listed_names`."""
    document = {
        "version": _VERSION,
        "secret": base64.b64encode(names.secret).decode("ascii"),
        "map": listed_names(names),
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


def decode_keys(data: bytes, what: str) -> ObfuscatedNames:
    """Decode the file; `what` begins the message of errors, which quote neither secret nor names.

    Raises FormatError if it is damaged, or not such a file.
    """
    document = read_object(data, what, max_bytes=MAX_KEY_FILE_BYTES)
    version = document.get("version")
    if type(version) is not int or version != _VERSION:
        told = f"version {version}" if type(version) is int else "no version"
        raise FormatError(f"{what} is not a key file of version 1: it has {told}"[:200])
    listed = document.get("map")
    if listed is None:  # as Go writes a map without entries
        listed = {}
    if not isinstance(listed, dict) or not all(isinstance(token, str) for token in listed.values()):
        raise FormatError(f"{what} is not a key file: its map is damaged")
    secret = _secret(document.get("secret"), what)
    for hashed, token in listed.items():
        if not token or keyed_hash(secret, token.encode()) != hashed:
            raise FormatError(f"{what} is damaged: the entry {hashed[:80]!r} of its map does not fit its secret")
    return ObfuscatedNames(secret, listed.values())


def _secret(value: object, what: str) -> bytes:
    try:
        secret = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise FormatError(f"{what} is not a key file: its secret is not 32 bytes in base64")
    return secret


def _is_unicode(token: str) -> bool:
    try:
        token.encode()
    except UnicodeEncodeError:
        return False
    return True
