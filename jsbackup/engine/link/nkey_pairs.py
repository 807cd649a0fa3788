"""Public keys and signatures of nkey seeds, and new users. The only module that uses the nkeys library."""

from __future__ import annotations

from jsbackup.config import Secret

__all__ = ["new_user_seed", "public_key", "sign"]


def public_key(seed: Secret) -> str:
    """Return the public key of a seed, of whatever role."""
    import nkeys

    return str(nkeys.from_seed(bytearray(seed.reveal().encode())).public_key.decode())


def sign(seed: Secret, data: bytes) -> bytes:
    """Return the Ed25519 signature, 64 bytes."""
    import nkeys

    return bytes(nkeys.from_seed(bytearray(seed.reveal().encode())).sign(data))


def new_user_seed(random: bytes) -> Secret:
    """Return the seed of a user, made of 32 random bytes."""
    import nkeys

    return Secret(nkeys.encode_seed(random, nkeys.PREFIX_BYTE_USER).decode())
