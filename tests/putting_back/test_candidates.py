"""What is decided for a message whose subject keeps one value: a newer one is only replaced if that is wanted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.protocol.info import StoredMessage
from jsbackup.putting_back.headers import content_of
from jsbackup.putting_back.model import Fate, PutBackMessage
from jsbackup.putting_back.plan import decide_value

SUBJECT = "$KV.b.k"
_BLOCKS = [None, b"NATS/1.0\r\nA: 1\r\n\r\n", b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"]
_MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"


@st.composite
def _chosen(draw: st.DrawFn) -> PutBackMessage:
    data = draw(st.sampled_from([b"", b"x", b"y"]))
    block = draw(st.sampled_from(_BLOCKS[:2]))
    reason = draw(st.sampled_from(["", "", "too large"]))
    time_ns = draw(st.integers(1, 5))
    action, content = Fate.REFUSED if reason else Fate.WRITE, content_of(SUBJECT, block, data)
    return PutBackMessage(7, time_ns, SUBJECT, 1, action, reason, "k", content=content)


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
def test_no_newer_value_is_replaced(one: PutBackMessage, present: StoredMessage | None, overwrite: bool) -> None:
    found = decide_value(one, present, overwrite=overwrite)
    value = present is not None and present.headers in _BLOCKS[:2]
    same = value and present is not None and content_of(SUBJECT, present.headers, present.data) == one.content
    assert (found.action is Fate.THERE) == same
    assert found.name == "k"
    if found.action is Fate.WRITE:
        assert not one.reason
        assert found.expected == (0 if present is None else present.sequence)
        assert found.overwrites == value
        if value and not overwrite:
            assert present is not None and present.timestamp_ns < one.timestamp_ns
    elif found.action is Fate.REFUSED:
        assert one.reason or (found.conflict and value and not overwrite)
    assert found.action is not Fate.LEFT_OUT


def test_another_value_of_the_same_time_is_not_replaced() -> None:
    content = content_of(SUBJECT, None, b"x")
    one = PutBackMessage(7, 5, SUBJECT, 1, Fate.WRITE, "", "k", content=content)
    present = StoredMessage(subject=SUBJECT, sequence=9, timestamp_ns=5, headers=b"", data=b"y")
    assert decide_value(one, present, overwrite=False).action is Fate.REFUSED
    earlier = replace(present, timestamp_ns=4)
    assert decide_value(one, earlier, overwrite=False).action is Fate.WRITE
