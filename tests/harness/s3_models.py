"""Clients of S3 that are made without reading what boto3 knows of S3 again.

boto3 reads two megabytes of JSON for each client, which takes 0.1 s: most of what a test of a store takes, and half of
what a command on S3 does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from botocore.loaders import JSONFileLoader

__all__ = ["keep_models", "read_models"]


def keep_models() -> None:
    """From now on each file is read once. Clients of one session share what was read as well."""
    read = JSONFileLoader.load_file

    @cache
    def read_once(path: str) -> Any:
        return read(JSONFileLoader(), path)

    JSONFileLoader.load_file = lambda _, path: read_once(path)


def read_models() -> None:
    """Read what a client needs."""
    import boto3

    boto3.Session("key", "secret", region_name="us-east-1").client("s3")
