"""Sums and bounds of groups are those of plain Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup import compute as pc
from jsbackup.look.subject_counts import Groups

_ROWS = st.lists(st.tuples(st.sampled_from([b"", b"a", b"b", b"\xff"]), st.integers(-(2**40), 2**40)), min_size=1)


@given(_ROWS)
def test_groups_are_those_of_plain_python(rows: list[tuple[bytes, int]]) -> None:
    groups = Groups(pc.binary_array([key for key, _ in rows]))
    values = pc.int64_array([value for _, value in rows])
    numbers: dict[bytes, list[int]] = {}
    for number, (key, _) in enumerate(rows):
        numbers.setdefault(key, []).append(number)
    truth = {
        key: (
            found[0],
            found[-1],
            sum(rows[number][1] for number in found),
            min(rows[number][1] for number in found),
            max(rows[number][1] for number in found),
        )
        for key, found in numbers.items()
    }
    columns = (groups.first_rows, groups.last_rows, groups.sums(values), groups.least(values), groups.most(values))
    told = list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert {rows[one[0]][0]: one for one in told} == truth and len(told) == len(truth)
