from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.engine.read.mirrors import CaptureOrder, copies_first, order_of
from jsbackup.protocol.info import StreamInfo
from tests.planning.test_plan import existing


def info(
    name: str, size: int = 0, *, sources: tuple[str, ...] = (), mirror: str = "", elsewhere: str = ""
) -> StreamInfo:
    origins: list[dict[str, object]] = [{"name": source} for source in sources]
    origins += [{"name": elsewhere, "external": {"api": "$JS.x.API"}}] if elsewhere else []
    config = {"name": name, "sources": origins, **({"mirror": {"name": mirror}} if mirror else {})}
    found = existing(name)
    return replace(found, config=config, state=replace(found.state, bytes=size))


def stages(*streams: StreamInfo) -> list[list[str]]:
    return [[one.name for one in stage] for stage in copies_first(streams)]


def test_copies_come_before_what_they_copy_from() -> None:
    chain = [info("A"), info("B", sources=("A",)), info("C", mirror="B"), info("X")]
    assert stages(*chain) == [["C", "X"], ["B"], ["A"]]


def test_largest_come_first_and_a_copy_counts_with_what_waits_for_it() -> None:
    streams = [info("A", 100), info("B", 1, sources=("A",)), info("X", 50), info("Y", 60)]
    assert stages(*streams) == [["B", "Y", "X"], ["A"]]


def test_origins_elsewhere_or_not_chosen_hold_nothing_up() -> None:
    assert stages(info("A", elsewhere="B"), info("B", sources=("NONE",))) == [["A", "B"]]


def test_a_circle_is_broken_at_its_smallest_stream_and_what_hangs_on_it_keeps_its_order() -> None:
    streams = [
        info("A", 9, sources=("B",)),
        info("B", 5, sources=("A",)),
        info("C", 1, sources=("B",)),
        info("SELF", sources=("SELF",)),
    ]
    order = order_of(streams)
    assert order.broken == {"B": {"A"}}
    assert [sorted(stage) for stage in order.stages] == [["C", "SELF"], ["B"], ["A"]]


@st.composite
def accounts(draw: st.DrawFn) -> list[StreamInfo]:
    names = [f"S{number}" for number in range(draw(st.integers(1, 8)))]
    return [
        info(name, draw(st.integers(0, 9)), sources=tuple(draw(st.lists(st.sampled_from(names), max_size=3))))
        for name in names
    ]


@given(accounts())
@settings(max_examples=300, deadline=None)
def test_every_stream_comes_once_and_behind_all_that_it_waits_for(streams: list[StreamInfo]) -> None:
    order = order_of(streams)
    names = [name for stage in order.stages for name in stage]
    assert sorted(names) == sorted(one.name for one in streams)
    copies: dict[str, set[str]] = {one.name: set() for one in streams}
    for one in streams:
        for source in one.config.get("sources") or []:
            if source["name"] != one.name:
                copies[source["name"]].add(one.name)
    for at, name in enumerate(names):
        assert order.after[name] == copies[name] - order.broken.get(name, frozenset())
        assert order.after[name] <= set(names[:at])


def test_workers_get_a_stream_when_its_copies_are_done_and_others_meanwhile() -> None:
    async def run() -> list[str]:
        order = CaptureOrder([info("A", 100), info("B", 1, sources=("A",)), info("X", 50)])
        said: list[str] = []

        async def work(pause: float) -> None:
            while (one := await order.take()) is not None:
                said.append(f"begin {one.name}")
                await asyncio.sleep(pause if one.name == "B" else 0)
                said.append(f"end {one.name}")
                await order.done(one.name)

        await asyncio.wait_for(asyncio.gather(work(0.05), work(0.05)), 5)
        return said

    said = asyncio.run(run())
    assert said == ["begin B", "begin X", "end X", "end B", "begin A", "end A"]


def test_nobody_waits_for_a_stream_that_is_left() -> None:
    async def run() -> None:
        order = CaptureOrder([info("A"), info("B", sources=("A",))])
        taken = await order.take()
        assert taken is not None and taken.name == "B"
        waiting = asyncio.create_task(order.take())
        await asyncio.sleep(0)
        assert not waiting.done() and [one.name for one in order.waiting] == ["A"]
        await order.done("B")
        found = await asyncio.wait_for(waiting, 5)
        assert found is not None and found.name == "A" and await order.take() is None

    asyncio.run(run())
