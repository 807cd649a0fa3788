"""Keyed hashes for names, subjects and values: the algorithm of `nats backup edit --obfuscate` (jsm.go 0.5.1,
`backup/obfuscate.go`), so that copies of both tools agree if they are made with the same key file.

A token becomes the first characters of HMAC-SHA-256 under a secret of 32 bytes, in base32 (hex alphabet, lower case):
as many characters as the token has bytes, but at least 16. So the same token is the same everywhere, and filters,
origins and subjects still fit together. Wildcards stay, and so do `$KV` and `$O`, and the prefixes `KV_` and `OBJ_` of
streams.

Unlike there, an object store stays one that clients can read: `C` and `M` in its subjects stay, and the token that has
an object's name in base64 becomes the hash of that name, in base64. `$1` in destinations stays too.

The key file of an obfuscated copy, as `nats backup lookup` (natscli 0.5.1) reads and writes it:

    {"version": 1, "secret": "<32 bytes in base64>", "map": {"<hash>": "<token>", …}}

The map leads back from hashes. Every entry is checked against the secret when a file is read, as by the nats CLI, which
refuses a file with an entry that does not fit. A token that is not UTF-8 has no place in JSON, so it is hashed and not
listed.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice

from jsbackup.errors import FormatError
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.strict_json import read_object

__all__ = [
    "MAX_KEY_FILE_BYTES",
    "SECRET_BYTES",
    "ObfuscatedNames",
    "decode_keys",
    "decoded_name",
    "encode_keys",
    "encoded_name",
    "keyed_hash",
]

SECRET_BYTES = 32
_LEAST_CHARACTERS = 16
_ROOTS = ("$KV", "$O")
_WILDCARDS = ("*", ">")
_FUNCTION = re.compile(r"\{\{.*\}\}|\$\d{1,9}", re.ASCII | re.DOTALL)


def keyed_hash(secret: bytes, token: bytes) -> str:
    """Return the hash of a token: as many characters as it has bytes, at least 16."""
    characters = max(_LEAST_CHARACTERS, len(token))
    need = (characters * 5 + 7) // 8
    block = digest = hmac.digest(secret, token, "sha256")
    number = 0
    while len(digest) < need:
        number += 1
        block = hmac.digest(secret, block + token + number.to_bytes(4, "big"), "sha256")
        digest += block
    return base64.b32hexencode(digest[:need]).decode("ascii").lower()[:characters]


def decoded_name(token: str) -> str | None:
    """Return the object's name that a token of a subject has in base64; None if it is not that."""
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        name = raw.decode("utf-8")
    except ValueError:
        return None
    return name if name and encoded_name(name).rstrip("=") == token.rstrip("=") else None


def encoded_name(name: str) -> str:
    """Return the token that has an object's name, as clients make it (base64 with padding)."""
    return base64.urlsafe_b64encode(name.encode("utf-8", "surrogateescape")).decode("ascii")


class ObfuscatedNames:
    """Hashes under one secret, and all tokens that were hashed. Threads may share it.

    Memory: each token and its hash, about 200 bytes.
    """

    __slots__ = ("_hashes", "_is_of_a_task", "_secret")

    def __init__(self, secret: bytes, known: Iterable[str] = (), *, is_of_a_task: bool = False) -> None:
        assert len(secret) == SECRET_BYTES, "not a secret of 32 bytes"
        self._secret = secret
        self._is_of_a_task = is_of_a_task
        self._hashes: dict[str, str] = {}
        self.learn(known)

    def __repr__(self) -> str:
        return f"ObfuscatedNames({len(self._hashes)} names)"  # never the secret

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        """A task of another process gets the secret, and reports the tokens that it has hashed (`since`)."""
        return _of_a_task, (self._secret,)

    @property
    def secret(self) -> bytes:
        return self._secret

    @property
    def hashes(self) -> Mapping[str, str]:
        """The hashes of all tokens that were hashed. One that is not UTF-8 has surrogates (`surrogateescape`)."""
        return self._hashes

    @property
    def count(self) -> int:
        """How many tokens were hashed."""
        return len(self._hashes)

    def since(self, count: int) -> tuple[str, ...]:
        """Return the tokens that a task of another process has hashed after the first so many; none in this one, where
        all are known.
        """
        return tuple(islice(self._hashes, count, None)) if self._is_of_a_task else ()

    def learn(self, tokens: Iterable[str]) -> None:
        """Hash tokens that were met elsewhere."""
        for token in tokens:
            self.token(token)

    def token(self, token: str) -> str:
        """Return the hash of a token, or of any text as a whole; "" for ""."""
        hashed = self._hashes.get(token)
        if hashed is None:
            if not token:
                return token
            hashed = keyed_hash(self._secret, token.encode("utf-8", "surrogateescape"))
            self._hashes[token] = hashed
        return hashed

    def stream(self, name: str) -> str:
        """Return the name of a stream; a bucket stays a bucket."""
        for prefix in (BUCKET_STREAM, OBJECT_STREAM):
            if name.startswith(prefix) and len(name) > len(prefix):
                return prefix + self.token(name[len(prefix) :])
        return self.token(name)

    def subject(self, subject: str) -> str:
        """Return a subject, or a pattern, token by token."""
        return self._mapped(subject, functions=False)

    def destination(self, subject: str) -> str:
        """Return the destination of a transform: `$1` and functions such as `{{wildcard(1)}}` stay."""
        return self._mapped(subject, functions=True)

    def _mapped(self, subject: str, *, functions: bool) -> str:
        if not subject:
            return subject
        tokens = subject.split(".")
        in_objects = tokens[0] == "$O"
        out = []
        for at, token in enumerate(tokens):
            stays = token in _WILDCARDS or token in _ROOTS or (in_objects and at == 2 and token in ("C", "M"))
            if stays or (functions and _FUNCTION.fullmatch(token)):
                out.append(token)
            elif in_objects and at == 3 and tokens[2] == "M" and (name := decoded_name(token)) is not None:
                out.append(encoded_name(self.token(name)))
            else:
                out.append(self.token(token))
        return ".".join(out)


def _of_a_task(secret: bytes) -> ObfuscatedNames:
    return ObfuscatedNames(secret, is_of_a_task=True)


# --- the key file ---

MAX_KEY_FILE_BYTES = 1 << 30
_VERSION = 1


def encode_keys(names: ObfuscatedNames) -> bytes:
    """Encode the file. Raises FormatError if two tokens have one hash."""
    listed: dict[str, str] = {}
    for token, hashed in sorted(dict(names.hashes).items()):
        if any("\ud800" <= character <= "\udfff" for character in token):
            continue
        if listed.setdefault(hashed, token) != token:
            raise FormatError("two names have the same hash", hint="Use another key file.")
    secret = base64.b64encode(names.secret).decode("ascii")
    document = {"version": _VERSION, "secret": secret, "map": dict(sorted(listed.items()))}
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


def decode_keys(data: bytes, what: str) -> ObfuscatedNames:
    """Decode the file; `what` begins the message of errors, which quote neither secret nor names.

    Raises FormatError if it is damaged, or not such a file.
    """
    document = read_object(data, what, max_bytes=MAX_KEY_FILE_BYTES)
    version, secret, listed = document.get("version"), document.get("secret"), document.get("map")
    if type(version) is not int or version != _VERSION:
        raise FormatError(f"{what} is not a key file of version {_VERSION}")
    listed = {} if listed is None else listed  # as Go writes a map without entries
    if not isinstance(listed, dict) or not all(isinstance(token, str) for token in listed.values()):
        raise FormatError(f"{what} is not a key file: its map is damaged")
    try:
        raw = base64.b64decode(secret, validate=True) if isinstance(secret, str) else b""
    except ValueError:
        raw = b""
    if len(raw) != SECRET_BYTES:
        raise FormatError(f"{what} is not a key file: its secret is not 32 bytes in base64")
    for hashed, token in listed.items():
        if not token or keyed_hash(raw, token.encode()) != hashed:
            raise FormatError(f"{what} is damaged: the entry {hashed[:80]!r} of its map does not fit its secret")
    return ObfuscatedNames(raw, listed.values())
