"""What is lost of a salvaged stream, in sentences: the same in every command."""

from __future__ import annotations

from collections.abc import Iterator

from jsbackup.readable import in_short
from jsbackup.repository.manifest import Losses, LostSpan

__all__ = ["about_losses", "describe_losses"]

_MOST_SPANS = 10
_MOST_SUBJECTS = 10


def describe_losses(lost: Losses) -> Iterator[str]:
    """Yield sentences with the sequences, and the subjects as far as they are known."""
    certain = [span for span in lost.spans if span.certain]
    if certain:
        count = sum(span.messages or 0 for span in certain)
        lead = f"{_messages(count)} {'is' if count == 1 else 'are'}"
        yield f"{lead} lost: {_sequences(certain)}{_subjects(lost)}"
    doubtful = [span for span in lost.spans if not span.certain and span.messages is not None]
    if doubtful:
        count = sum(span.messages or 0 for span in doubtful)
        yield f"up to {_messages(count)} may be lost, unless they had been deleted: {_sequences(doubtful)}"
    for span in lost.spans:
        if span.messages is None:
            yield f"what was stored from sequence {span.first_seq} on, if anything was, is lost"


def about_losses(lost: Losses) -> str:
    """Return half a sentence: how much is lost; "" if nothing is."""
    certain = sum(span.messages or 0 for span in lost.spans if span.certain)
    doubtful = sum(span.messages or 0 for span in lost.spans if not span.certain)
    parts = [f"{_messages(certain)} that it had"] if certain else []
    parts += [f"up to {doubtful:,} that it may have had"] if doubtful else []
    if not parts and lost.spans:
        parts = ["what was stored at its end, if anything was"]
    return " and ".join(parts)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _sequences(spans: list[LostSpan]) -> str:
    shown = ", ".join(map(_span, spans[:_MOST_SPANS]))
    more = len(spans) - _MOST_SPANS
    plural = len(spans) > 1 or spans[0].first_seq != spans[0].last_seq
    return f"sequence{'s' if plural else ''} {shown}" + (f" and {more:,} more ranges" if more > 0 else "")


def _span(span: LostSpan) -> str:
    if span.last_seq is None or span.last_seq == span.first_seq:
        text = str(span.first_seq)
    else:
        text = f"{span.first_seq} to {span.last_seq}"
        if span.messages is not None and span.messages != span.last_seq - span.first_seq + 1:
            text += f" ({span.messages:,} of them)"
    return text


def _subjects(lost: Losses) -> str:
    known = [f"{subject} ({count:,})" for subject, count in lost.subjects.items()]
    if not known:
        seen = dict.fromkeys(subject for span in lost.spans if span.certain for subject in span.subjects)
        known = [f"{subject}, as it seems" for subject in seen]
    if not known:
        return ""
    return f"; subject{'s' if len(known) > 1 else ''} {in_short(known, most=_MOST_SUBJECTS)}"
