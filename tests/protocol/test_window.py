"""How much may be on its way."""

from __future__ import annotations

from jsbackup.protocol.dialogue import LEAST_WINDOW_BYTES, window_for

MIB = 1 << 20


def test_the_window_grows_with_the_round_trip_within_bounds() -> None:
    assert [window_for(seconds) for seconds in (0.0, 0.001, 1.0, 1e9)] == [4 * MIB, 4 * MIB, 16 * MIB, 16 * MIB]
    assert 8 * MIB < window_for(0.025) < 16 * MIB
    assert window_for(0.0) == LEAST_WINDOW_BYTES
