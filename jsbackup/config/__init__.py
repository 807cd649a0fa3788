"""Configuration: text → values, and everything that says where and as whom to connect.

Only `environment` reads the process environment; all else takes it as an argument, so that a result depends on its
arguments and on the files they name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from jsbackup.config.connection import (
    Connection,
    Login,
    Nkey,
    Server,
    Tls,
    UserJwt,
    UserPassword,
    source_connection,
    target_connection,
)
from jsbackup.config.keys import KeySecrets, key_secrets, new_writer_key_file, secret_file
from jsbackup.config.options import ConnectionOptions
from jsbackup.config.s3 import s3_settings
from jsbackup.config.secrets import Secret
from jsbackup.config.values import Glob, parse_bool, parse_duration, parse_glob, parse_size, parse_time

__all__ = [
    "Connection",
    "ConnectionOptions",
    "Glob",
    "KeySecrets",
    "Login",
    "Nkey",
    "Secret",
    "Server",
    "Tls",
    "UserJwt",
    "UserPassword",
    "environment",
    "key_secrets",
    "new_writer_key_file",
    "parse_bool",
    "parse_duration",
    "parse_glob",
    "parse_size",
    "parse_time",
    "s3_settings",
    "secret_file",
    "source_connection",
    "target_connection",
]


def environment() -> Mapping[str, str]:
    """A copy of the process environment, taken now."""
    return dict(os.environ)
