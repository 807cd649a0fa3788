"""Work is packed into tasks: all of it once, in order, and no task takes more than it should."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.pipeline.tasks.packing import pack, pack_tasks, task_bytes

MIB = 1 << 20
SIZES = st.lists(st.integers(0, 300), max_size=40)


@given(SIZES, st.integers(1, 400))
def test_groups_are_neighbours_within_the_limit_and_as_few_as_that_allows(sizes: list[int], limit: int) -> None:
    groups = [sizes[piece] for piece in pack(sizes, limit)]
    assert [size for group in groups for size in group] == sizes
    assert all(len(group) == 1 or sum(group) <= limit for group in groups) and all(groups)
    for group, following in pairwise(groups):
        assert sum(group) + following[0] > limit


def test_a_task_has_a_share_of_the_whole_between_two_bounds() -> None:
    assert task_bytes(0) == task_bytes(100 * MIB) == 8 * MIB
    assert task_bytes(1600 * MIB) == 100 * MIB
    assert task_bytes(1 << 40) == 128 * MIB
    # Three for each core where there are many.
    assert task_bytes(1600 * MIB, 5) == 100 * MIB and task_bytes(1600 * MIB, 20) == 1600 * MIB // 60
    assert task_bytes(1600 * MIB, 200) == 8 * MIB


def test_much_work_becomes_many_tasks() -> None:
    sizes = [32 * MIB] * 64
    pieces = pack_tasks(sizes)
    assert {sum(sizes[piece]) for piece in pieces} == {128 * MIB} and len(pieces) == 16
    assert len(pack_tasks(sizes, 4)) == 16 and len(pack_tasks(sizes, 200)) == 64
