"""Precedence of options from two sources, such as the command line and a profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsbackup.config import LOGIN_NAMES

__all__ = ["over"]

# The options in a set are alternatives: one from above replaces any of them from below.
_ALTERNATIVES: Final = tuple(
    frozenset(f"{prefix}{name}" for name in names)
    for prefix in ("", "to_")
    for names in (
        ("js_domain", "js_api_prefix"),
        ("writer_key", "writer_key_command"),
        ("identity", "identity_command"),
        ("passphrase_file", "passphrase_command"),
        ("sample", "max_bytes"),
    )
)
_PASSWORDS: Final = frozenset({"password", "password_file", "password_command"})


def over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `below`, by parameter name, without those that contradict options `above`."""
    gone = {name for names in _ALTERNATIVES if names & above.keys() for name in names}
    for prefix in ("", "to_"):
        login = {f"{prefix}{name}" for name in LOGIN_NAMES}
        passwords = {f"{prefix}{name}" for name in _PASSWORDS}
        given = login & above.keys()
        if given and given <= passwords:
            gone |= login - {f"{prefix}user"}
        elif given or "@" in str(above.get(f"{prefix}server", "")):
            gone |= login
        if f"{prefix}context" in above:  # it is a server with its login
            gone |= {*login, f"{prefix}server"}
    return {name: value for name, value in below.items() if name not in gone} | dict(above)
