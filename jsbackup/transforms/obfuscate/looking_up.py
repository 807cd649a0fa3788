"""From hashes to names, as `nats backup lookup` does, and from names to hashes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jsbackup.transforms.obfuscate.key_codec import listed_names
from jsbackup.transforms.obfuscate.names import ObfuscatedNames, decoded_name, encoded_name

__all__ = ["NameLookup"]

_HASH = re.compile(r"(?<![0-9a-z])[0-9a-v]{16,}(?![0-9a-z])")


class NameLookup:
    """The names of a key file, in both directions."""

    def __init__(self, names: ObfuscatedNames) -> None:
        self._known = names
        self._clear: Mapping[str, str] = listed_names(names)

    def clear(self, value: str) -> str | None:
        """Return a value with what is behind its hashes: a subject token by token, a bucket's stream behind its prefix,
        and any other text. What is not in the file stays. None if it has none of it.
        """
        tokens = value.split(".")
        if len(tokens) == 4 and tokens[0] == "$O" and tokens[2] == "M":
            name = self._clear.get(decoded_name(tokens[3]) or "")
            tokens[3] = tokens[3] if name is None else encoded_name(name)
        clear = _HASH.sub(lambda found: self._clear.get(found[0], found[0]), ".".join(tokens))
        return None if clear == value else clear

    def obfuscated(self, value: str) -> str:
        """Return what a clear value becomes under the key: a subject token by token, if the file does not have all of
        it as one value.
        """
        return self._known.hashes.get(value) or _hashed(ObfuscatedNames(self._known.secret), value)

    def obfuscated_if_known(self, value: str) -> str | None:
        """Return the same, None if a part of the value is not in the file."""
        if value in self._known.hashes:
            return self._known.hashes[value]
        new = ObfuscatedNames(self._known.secret)
        hashed = _hashed(new, value)
        return hashed if hashed != value and new.tokens <= self._known.tokens else None


def _hashed(names: ObfuscatedNames, value: str) -> str:
    return names.subject(value) if "." in value else names.stream(value)
