"""What a repository is opened with: a plain one needs no key, and none of the imports of cryptography."""

from __future__ import annotations

from jsbackup.repository.crypto.access import NO_KEYS, Access, GivenKeys
from jsbackup.repository.descriptor import Descriptor
from jsbackup.stores.base import Store

__all__ = ["opened_access"]


def opened_access(store: Store, descriptor: Descriptor, keys: GivenKeys) -> Access:
    """Return what the keys open. Raises as `open_access`."""
    if descriptor.authority is None and keys == NO_KEYS:
        return Access()
    from jsbackup.repository.crypto.opening import open_access

    return open_access(store, descriptor, keys)
