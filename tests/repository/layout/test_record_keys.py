from __future__ import annotations

from collections.abc import Callable

import pytest

from jsbackup.errors import FormatError
from jsbackup.repository import layout
from jsbackup.repository.layout import LeaseKey

DIGEST = "0123456789abcdef" * 4


def test_keys_are_what_the_design_says() -> None:
    folder = layout.stream_folder("ORDERS", "1a2b3c4d")
    assert folder == "segments/ORDERS-1a2b3c4d"
    key = layout.segment_key(folder, 1, 1234, DIGEST)
    assert key == f"segments/ORDERS-1a2b3c4d/00000000000000000001-00000000000000001234-{DIGEST}.parquet"
    assert layout.stored_keys(key, "deadbeef" * 8)[0] == key.removesuffix(".parquet") + ".deadbeef.parquet"
    for first in (key, f"{key}.age", layout.pending_key(folder, DIGEST), layout.opaque_key(folder, DIGEST, ".age")):
        assert layout.content_key(layout.stored_keys(first, "deadbeef" * 8)[0]) == first
        assert layout.content_key(first) == first
    assert layout.pending_key(folder, DIGEST) == f"segments/ORDERS-1a2b3c4d/pending-{DIGEST}.parquet"
    assert layout.opaque_key(folder, DIGEST) == f"segments/ORDERS-1a2b3c4d/opaque-{DIGEST}.zst"
    assert layout.manifest_key("20261121T014500Z-1a2b3c") == "backups/20261121T014500Z-1a2b3c.json"
    lease = LeaseKey("00112233445566ff", 7, exclusive=True, duration_seconds=300)
    assert layout.lease_key(lease) == "locks/00112233445566ff-00000007-exclusive-300.json"
    assert layout.mark_key("1a2b") == "pruning/1a2b.json"
    assert layout.DESCRIPTOR == "jsbackup.json"


@pytest.mark.parametrize(
    "make",
    [
        lambda: layout.segment_key("segments/a-00000000", 0, 9, DIGEST),
        lambda: layout.segment_key("segments/a-00000000", 9, 5, DIGEST),
        lambda: layout.segment_key("segments/a-00000000", -1, 5, DIGEST),
        lambda: layout.segment_key("segments/a-00000000", 5, 1 << 64, DIGEST),
        lambda: layout.segment_key("segments/a-00000000", 5, 9, "x"),
        lambda: layout.segment_key("elsewhere", 5, 9, DIGEST),
        lambda: layout.manifest_key("../x"),
        lambda: layout.manifest_key("latest"),
        lambda: layout.lease_key(LeaseKey("1a2b", 1, exclusive=True, duration_seconds=300)),
        lambda: layout.lease_key(LeaseKey("00112233445566ff", 10**8, exclusive=True, duration_seconds=300)),
        lambda: layout.lease_key(LeaseKey("00112233445566ff", 1, exclusive=False, duration_seconds=0)),
        lambda: layout.lease_key(LeaseKey("00112233445566ff", 1, exclusive=False, duration_seconds=10**4)),
    ],
)
def test_no_key_is_made_of_wrong_parts(make: Callable[[], str]) -> None:
    with pytest.raises(FormatError):
        make()


def test_leases_are_known_by_the_key_alone_and_their_generations_sort() -> None:
    leases = [LeaseKey("00112233445566ff", n, n % 2 == 0, 300) for n in (1, 2, 9, 10, 99, 100, 99_999_999)]
    keys = [layout.lease_key(lease) for lease in leases]
    assert keys == sorted(keys)
    assert [layout.parse_lease_key(key) for key in keys] == leases
    assert all(key.startswith(layout.lease_prefix(leases[0].id)) for key in keys)
