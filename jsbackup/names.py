"""What may stand in a NATS subject: names of streams and consumers (one token), whole literal subjects, and patterns.

The server permits any text without space, tab, CR, LF, form feed, `.`, `*` and `>` (`isValidName` in its
`jetstream.go`), Unicode and control characters included, in up to 255 bytes of UTF-8 (`JSMaxNameLen`). A token is thus
whatever stands between two dots, byte for byte. What Python and regular expressions take for white space is more than
that, such as U+00A0 and U+2028: every check of a name or subject uses `BLANKS` instead.

A server creates no stream or consumer with `/` or `\\` in its name (`isValidAssetName`), and can keep none with NUL on
disk. It may still list such names.
"""

from __future__ import annotations

from jsbackup.errors import UsageError

__all__ = [
    "BLANKS",
    "BUCKET_STREAM",
    "MAX_NAME_BYTES",
    "OBJECT_STREAM",
    "check_name",
    "check_subject",
    "has_blank",
    "is_name",
    "is_new_name",
    "is_pattern",
    "is_subject",
]

MAX_NAME_BYTES = 255

BUCKET_STREAM = "KV_"
"""The beginning of the name of a key-value bucket's stream."""

OBJECT_STREAM = "OBJ_"
"""The beginning of the name of an object store's stream."""

# Longer than any subject the server takes: a client's whole protocol line is 4 KiB by default (`max_control_line`).
_MAX_SUBJECT_BYTES = 4096
# All characters that the server treats as white space (`IsValidSubject` in its `sublist.go`).
BLANKS = " \t\r\n\f"
_BLANKS = frozenset(BLANKS)
_BLANKS_AND_NUL = _BLANKS | {"\0"}
_NOT_IN_A_NAME = _BLANKS | frozenset(".*>")
_NOT_IN_A_NEW_NAME = _NOT_IN_A_NAME | frozenset("/\\\0")


def _fits(text: str, limit: int) -> bool:
    try:
        return 0 < len(text.encode()) <= limit
    except UnicodeEncodeError:  # a lone surrogate, which cannot be sent
        return False


def is_name(text: str) -> bool:
    """Return whether `text` can be the name of a stream or a consumer, and so one token of a subject."""
    return _fits(text, MAX_NAME_BYTES) and _NOT_IN_A_NAME.isdisjoint(text)


def is_pattern(text: str) -> bool:
    """Return whether a server accepts it as a subject to filter by: no empty token, no white space, `>` at the end
    only.
    """
    tokens = text.split(".")
    return _fits(text, _MAX_SUBJECT_BYTES) and not has_blank(text) and "" not in tokens and ">" not in tokens[:-1]


def is_new_name(text: str) -> bool:
    """Return whether a server would create a stream or consumer of this name, and can store it on disk."""
    return _fits(text, MAX_NAME_BYTES) and _NOT_IN_A_NEW_NAME.isdisjoint(text)


def has_blank(text: str) -> bool:
    """Return whether no subject can contain this: white space as the server sees it, or NUL."""
    return not _BLANKS_AND_NUL.isdisjoint(text)


def is_subject(text: str) -> bool:
    """Return whether `text` is a subject that can be published to: no empty token, no wildcard, no white space."""
    if not _fits(text, _MAX_SUBJECT_BYTES) or not _BLANKS.isdisjoint(text):
        return False
    return not any(token in ("", "*", ">") for token in text.split("."))


def check_name(kind: str, text: str) -> str:
    """Return `text` if it can name a `kind` ("stream", "consumer", …). Raises UsageError otherwise."""
    if not is_name(text):
        raise UsageError(
            f"not a {kind} name: {text[:80]!r}",
            hint="Names are one to 255 bytes without spaces, dots and the wildcards * and >.",
        )
    return text


def check_subject(kind: str, text: str) -> str:
    """Return `text` if it is a literal subject. Raises UsageError otherwise."""
    if not is_subject(text):
        raise UsageError(f"not a {kind}: {text[:80]!r}", hint="Subjects are tokens joined by dots, without wildcards.")
    return text
