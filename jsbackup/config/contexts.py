"""Read contexts of the nats CLI: named layers of connection options.

A context is `context/<name>.json` below `$XDG_CONFIG_HOME/nats` (or `~/.config/nats`); `context.txt` beside that folder
holds the name of the selected one. A name that ends in `.json` and is an existing file is that file, as in the CLI.
Unknown keys are ignored: the CLI adds some with each release. Keys that change *where* to connect and that jsbackup
does not support (SOCKS proxy, Windows certificate store) are refused: without them it would connect to something else.

The old key `nsc` (`OPERATOR/ACCOUNT/USER`) stands for what nsc knows about a user: the credentials, unless the context
has `creds`, and the servers, unless it has `url`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jsbackup.config.options import ConnectionOptions
from jsbackup.config.secret_references import nsc_profile
from jsbackup.config.secrets import home, read_file_if_there
from jsbackup.errors import UsageError
from jsbackup.strict_json import read_object

__all__ = ["context_names", "context_path", "read_context", "selected_context"]

# Key of the context file -> field of ConnectionOptions.
_TEXT_KEYS: Final = {
    "url": "server",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "user_jwt": "jwt",
    "user_seed": "seed",
    "cert": "tls_cert",
    "key": "tls_key",
    "ca": "tls_ca",
    "jetstream_domain": "js_domain",
    "jetstream_api_prefix": "js_api_prefix",
    "inbox_prefix": "inbox_prefix",
}
_NSC: Final = "nsc://"
_UNSUPPORTED_KEYS: Final = {
    "socks_proxy": "a SOCKS proxy",
    "windows_cert_store": "the Windows certificate store",
}


def context_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of all contexts. Raises UsageError if there is no home directory."""
    return sorted(found.stem for found in (_folder(environ) / "context").glob("*.json"))


def selected_context(environ: Mapping[str, str]) -> str | None:
    """Return the name in `context.txt`, or None if no context is selected. Raises UsageError if the file cannot be
    read.
    """
    text = read_file_if_there(_folder(environ) / "context.txt", "file of the selected context")
    return (text or "").strip() or None


def read_context(name: str, environ: Mapping[str, str]) -> ConnectionOptions:
    """Read a context. Raises UsageError if it is missing, is not JSON, needs something unsupported, or if nsc cannot
    be asked.
    """
    path = context_path(name, environ)
    text = read_file_if_there(path, "nats context")
    if text is None:
        known = sorted(found.stem for found in path.parent.glob("*.json"))
        raise UsageError(
            f"there is no nats context {name!r} in {path.parent}",
            hint=f"Known contexts: {', '.join(known)}." if known else "Make one with: nats context add NAME.",
        )
    document = read_object(text, f"nats context {name!r}", kind=UsageError)
    for key, meaning in _UNSUPPORTED_KEYS.items():
        if document.get(key):
            raise UsageError(f"nats context {name!r} uses {meaning} ({key!r}), which jsbackup does not support")
    texts = {field: _text(document, key, name) for key, field in _TEXT_KEYS.items()}
    tls_first = document.get("tls_first")
    if tls_first is not None and not isinstance(tls_first, bool):
        raise UsageError(f"'tls_first' in nats context {name!r} is neither true nor false")
    user = _text(document, "nsc", name)
    if user is not None and not (texts["creds"] and texts["server"]):
        asked = user[len(_NSC) :] if user.lower().startswith(_NSC) else user
        creds, servers = nsc_profile(asked, "credentials file", environ)
        texts["creds"] = texts["creds"] or creds or None
        texts["server"] = texts["server"] or servers or None
    return ConnectionOptions(tls_first=tls_first or None, **texts)


def _folder(environ: Mapping[str, str]) -> Path:
    configured = environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else home(environ) / ".config") / "nats"


def context_path(name: str, environ: Mapping[str, str]) -> Path:
    """Return the file of a context. Raises UsageError if the name is not valid."""
    if name.endswith(".json") and (path := Path(name)).is_file():
        return path
    if not name or ".." in name or any(character in "/\\\0" for character in name):
        raise UsageError(
            f"not a name of a nats context: {name!r}", hint="Give a name, or the path of an existing .json file."
        )
    return _folder(environ) / "context" / f"{name}.json"


def _text(document: dict[str, Any], key: str, name: str) -> str | None:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{key!r} in nats context {name!r} is not a text")
    return value or None
