"""How losses are told."""

from __future__ import annotations

import pytest

from jsbackup.repository.manifest import Losses, LostSpan
from jsbackup.repository.read.losses import about_losses, describe_losses

DAMAGED = "msgs/1.blk is damaged"


def certain(first: int, last: int, *subjects: str) -> LostSpan:
    return LostSpan(first, last, last - first + 1, True, DAMAGED, subjects)


@pytest.mark.parametrize(
    ("lost", "about", "sentences"),
    [
        (Losses(), "", []),
        (Losses((certain(7, 7),)), "1 message that it had", ["1 message is lost: sequence 7"]),
        (
            Losses((certain(7, 9), certain(11, 1200)), {"a": 1193}),
            "1,193 messages that it had",
            ["1,193 messages are lost: sequences 7 to 9, 11 to 1200; subject a (1,193)"],
        ),
        (
            Losses((certain(7, 7, "a.b"),)),
            "1 message that it had",
            ["1 message is lost: sequence 7; subject a.b, as it seems"],
        ),
        (
            Losses((LostSpan(5, 20, 4, True, DAMAGED),), {"a": 3, "b": 1}),
            "4 messages that it had",
            ["4 messages are lost: sequences 5 to 20 (4 of them); subjects a (3), b (1)"],
        ),
        (
            Losses((certain(1, 2), LostSpan(5, 20, 16, False, DAMAGED), LostSpan(30, None, None, False, DAMAGED))),
            "2 messages that it had and up to 16 that it may have had",
            [
                "2 messages are lost: sequences 1 to 2",
                "up to 16 messages may be lost, unless they had been deleted: sequences 5 to 20",
                "what was stored from sequence 30 on, if anything was, is lost",
            ],
        ),
        (
            Losses((LostSpan(30, None, None, False, DAMAGED),)),
            "what was stored at its end, if anything was",
            ["what was stored from sequence 30 on, if anything was, is lost"],
        ),
    ],
)
def test_losses_are_told_in_sentences(lost: Losses, about: str, sentences: list[str]) -> None:
    assert about_losses(lost) == about
    assert list(describe_losses(lost)) == sentences
    assert bool(lost) == bool(sentences)


def test_a_long_report_is_cut() -> None:
    lost = Losses(tuple(certain(10 * at, 10 * at) for at in range(1, 31)), {f"s.{at}": 1 for at in range(30)})
    (sentence,) = describe_losses(lost)
    assert "sequences 10, 20, 30" in sentence and "and 20 more ranges; subjects s.0 (1)" in sentence
    assert sentence.endswith("s.9 (1) and 20 more")
