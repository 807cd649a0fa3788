"""The public part of an SSH private key, with `cryptography`; pyrage does not tell it."""

from __future__ import annotations

__all__ = ["ssh_public_key"]


def ssh_public_key(private: bytes) -> str | None:
    """Return the public key of a private one without passphrase, as `ssh-ed25519 …` or `ssh-rsa …`. `private` is the
    content of a file as OpenSSH writes it now, or in PEM. None if that cannot be read.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
        load_ssh_private_key,
    )

    load = load_ssh_private_key if private.startswith(b"-----BEGIN OPENSSH ") else load_pem_private_key
    try:
        return load(private, None).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
