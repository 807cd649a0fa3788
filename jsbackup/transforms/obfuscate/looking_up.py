"""From hashes to names, as `nats backup lookup` does, and from names to hashes."""

from __future__ import annotations

from collections.abc import Mapping

from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.transforms.obfuscate.key_codec import listed_names
from jsbackup.transforms.obfuscate.names import ObfuscatedNames, decoded_name, encoded_name

__all__ = ["NameLookup"]


class NameLookup:
    """The names of a key file, in both directions."""

    def __init__(self, names: ObfuscatedNames) -> None:
        self._known = names
        self._clear: Mapping[str, str] = listed_names(names)

    def clear(self, value: str) -> str | None:
        """Return what was obfuscated to a value: a subject token by token, a bucket's stream behind its prefix. Tokens
        that are not in the file stay. None if it has none of them.
        """
        tokens = value.split(".")
        found = [self._clear_token(token) for token in tokens]
        if len(tokens) == 4 and tokens[0] == "$O" and tokens[2] == "M":
            name = self._clear.get(decoded_name(tokens[3]) or "")
            found[3] = found[3] if name is None else encoded_name(name)
        if not any(one is not None for one in found):
            return None
        return ".".join(token if one is None else one for token, one in zip(tokens, found, strict=True))

    def _clear_token(self, token: str) -> str | None:
        if token in self._clear:
            return self._clear[token]
        for prefix in (BUCKET_STREAM, OBJECT_STREAM):
            if token.startswith(prefix) and token[len(prefix) :] in self._clear:
                return prefix + self._clear[token[len(prefix) :]]
        return None

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
