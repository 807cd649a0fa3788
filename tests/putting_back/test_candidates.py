"""What is decided for a message whose subject keeps one value: a newer one is only replaced if that is wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.protocol.info import StoredMessage
from jsbackup.putting_back.candidates import ChosenMessage, content_of, decide_value
from jsbackup.putting_back.model import Fate

SUBJECT = "$KV.b.k"
_BLOCKS = [None, b"NATS/1.0\r\nA: 1\r\n\r\n", b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"]
_MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"


@st.composite
def _chosen(draw: st.DrawFn) -> ChosenMessage:
    data = draw(st.sampled_from([b"", b"x", b"y"]))
    block = draw(st.sampled_from(_BLOCKS[:2]))
    reason = draw(st.sampled_from(["", "", "too large"]))
    time_ns = draw(st.integers(1, 5))
    return ChosenMessage(7, time_ns, SUBJECT, 1, content_of(SUBJECT, block, data), ("KV_b", 7, time_ns), reason)


_PRESENT = st.one_of(
    st.none(),
    st.builds(
        StoredMessage,
        subject=st.just(SUBJECT),
        sequence=st.integers(1, 9),
        timestamp_ns=st.integers(1, 5),
        headers=st.sampled_from([*_BLOCKS, _MARKER]),
        data=st.sampled_from([b"", b"x", b"y"]),
    ),
)


@given(_chosen(), _PRESENT, st.booleans())
def test_no_newer_value_is_replaced(one: ChosenMessage, present: StoredMessage | None, overwrite: bool) -> None:
    found = decide_value(one, present, key=True, overwrite=overwrite)
    value = present is not None and present.headers in _BLOCKS[:2]
    same = value and present is not None and content_of(SUBJECT, present.headers, present.data) == one.content
    assert (found.fate is Fate.THERE) == same
    assert found.name == "k"
    if found.fate is Fate.WRITE:
        assert not one.reason
        assert found.expected == (0 if present is None else present.sequence)
        assert found.overwrites == value
        if value and not overwrite:
            assert present is not None and present.timestamp_ns < one.timestamp_ns
    elif found.fate is Fate.REFUSED:
        assert one.reason or (found.conflict and value and not overwrite)
    assert found.fate is not Fate.LEFT_OUT
