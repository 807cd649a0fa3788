"""Settings for S3 stores under test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jsbackup.model import S3Settings
from tests.harness.s3server import REGION


def settings_of(url: str, **changes: Any) -> S3Settings:
    return replace(S3Settings(endpoint=url, region=REGION, connect_seconds=2.0, read_seconds=20.0), **changes)
