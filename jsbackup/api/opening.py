"""Which repository to open, and with which keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath

from jsbackup.api.connecting import File
from jsbackup.api.stored import BackupRepository
from jsbackup.config import KeySecrets, environment, key_secrets, s3_settings
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.repository.crypto.access import NO_KEYS
from jsbackup.repository.crypto.keys import read_keys

__all__ = ["open"]


def open(
    location: str | PathLike[str],
    *,
    create: bool = False,
    writer_key: File | None = None,
    identity: File | None = None,
    passphrase: str | None = None,
    expect_signer: str | None = None,
    s3_endpoint: str | None = None,
    s3_region: str | None = None,
    s3_profile: str | None = None,
    s3_path_style: bool | None = None,
    s3_ca: str | PathLike[str] | None = None,
    s3_sse: str | None = None,
    s3_sse_kms_key: str | None = None,
    s3_storage_class: str | None = None,
) -> BackupRepository:
    """Return the repository at `location`: a folder, or `s3://bucket/prefix`.

    With `create` the location may be empty: a backup then creates a repository there, which is not encrypted (for
    others use `jsbackup init`).

    `writer_key` and `identity` are paths of key files, or their content as bytes; `passphrase` is the passphrase
    itself; `expect_signer` is the public key that must have made all signatures. Values not given come from the
    variables of the command line (such as JSBACKUP_IDENTITY_FILE, AWS_… for S3).

    Raises:
        RepositoryNotFound: there is none.
        KeyUnavailable: the given key does not fit.
        UsageError: an argument is wrong, or a file does not contain a key.
        IntegrityError: the repository's descriptor is lost or damaged, or not the one that the keys belong to.
        UnsupportedError: it needs a newer version.
        StoreError: the store does not answer.
    """
    given = {
        "s3_endpoint": s3_endpoint,
        "s3_region": s3_region,
        "s3_profile": s3_profile,
        "s3_path_style": s3_path_style,
        "s3_ca": None if s3_ca is None else fspath(s3_ca),
        "s3_sse": s3_sse,
        "s3_sse_kms_key": s3_sse_kms_key,
        "s3_storage_class": s3_storage_class,
    }
    variables = environment()
    files = {"writer_key": writer_key, "identity": identity}
    paths = {name: fspath(file) for name, file in files.items() if file is not None and not isinstance(file, bytes)}
    if expect_signer is not None:
        paths["expect_signer"] = expect_signer
    contents = {name: file for name, file in files.items() if isinstance(file, bytes)}
    if passphrase is not None:
        contents["passphrase"] = passphrase.encode()
    found = key_secrets(paths, _without(variables, contents))
    secrets = replace(
        found,
        writer_key=contents.get("writer_key", found.writer_key),
        identity=contents.get("identity", found.identity),
        passphrase=contents.get("passphrase", found.passphrase),
    )
    keys = NO_KEYS
    if secrets != KeySecrets():
        keys = read_keys(secrets.writer_key, secrets.identity, secrets.passphrase, secrets.expect_signer)
    place = place_of(fspath(location), s3_settings(given, variables), paths)
    return BackupRepository(place, keys, create=create, in_memory=bool(contents))


def _without(variables: Mapping[str, str], names: Mapping[str, bytes]) -> dict[str, str]:
    """Return the environment without the variables for these keys."""
    said = tuple(f"JSBACKUP_{name.upper()}" for name in names)
    return {name: value for name, value in variables.items() if not name.startswith(said)}
