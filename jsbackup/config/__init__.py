"""Configuration: values from text; in `connection.py` where and as whom to connect, which few commands ask.

Only `environment` reads the process environment, only `environment_with` changes it; everything else takes it as an
argument, so that results depend only on arguments and on the files they name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jsbackup.config.profiles import (
    ConfigFile,
    default_config_path,
    examine_config,
    expand_variables,
    read_config,
    read_toml,
)
from jsbackup.config.repository import (
    KeySecrets,
    key_secrets,
    mask_secret,
    new_writer_key_file,
    s3_settings,
    secret_file,
    server_store_keys,
)
from jsbackup.config.secrets import Secret, expand_path, hide_logins, is_reference, needs_program, resolve_secret
from jsbackup.config.values import (
    MAY_MISS,
    Glob,
    excludes_nothing,
    format_bytes,
    is_chosen,
    nearest,
    parse_bool,
    parse_duration,
    parse_glob,
    parse_size,
    parse_typed_time,
    similar,
)

__all__ = [
    "MAY_MISS",
    "ConfigFile",
    "Glob",
    "KeySecrets",
    "Secret",
    "default_config_path",
    "environment",
    "environment_with",
    "examine_config",
    "excludes_nothing",
    "expand_path",
    "expand_variables",
    "format_bytes",
    "hide_logins",
    "is_chosen",
    "is_reference",
    "key_secrets",
    "mask_secret",
    "nearest",
    "needs_program",
    "new_writer_key_file",
    "parse_bool",
    "parse_duration",
    "parse_glob",
    "parse_size",
    "parse_typed_time",
    "read_config",
    "read_toml",
    "resolve_secret",
    "s3_settings",
    "secret_file",
    "server_store_keys",
    "similar",
]


def environment(prefix: str = "JSBACKUP_") -> Mapping[str, str]:
    """Return a copy of the present process environment. With another prefix, such as that of a second repository,
    variables that begin with it have the usual names, and the usual ones are left out.
    """
    if prefix == "JSBACKUP_":
        return dict(os.environ)
    own = {f"JSBACKUP_{k.removeprefix(prefix)}": v for k, v in os.environ.items() if k.startswith(prefix)}
    return {k: v for k, v in os.environ.items() if not k.startswith("JSBACKUP_")} | own


@contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables inside, and restore them afterwards: for libraries that cannot be configured otherwise."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
