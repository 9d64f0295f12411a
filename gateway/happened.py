"""What happened and is no message, as the model is told of it: one line in the frame's own words. Pure."""

from datetime import datetime
from typing import Final, Literal

from gateway.events import Alarm, Delivery, Finished, Link, Named, Reacted
from gateway.records import Fact

Happened = Alarm | Finished | Reacted | Delivery | Link | Named
Pieces = tuple[tuple[Literal["own", "name", "quoted"], str], ...]
"""As `agent.brief.Line.happened`."""

HAPPENED: Final = (Alarm, Finished, Reacted, Delivery, Link, Named)
DOUBT: Final = (
    'may or may not have been delivered (whoever waited for it may say "again" to see it once more; '
    "do not repeat it unasked)"
)
SNIPPET_CHARS: Final = 80
"""Of a post of ours: enough to know it again."""


def tale(event: Happened, post: str = "") -> Pieces:
    """The line. `post`: how the post of ours began that a reaction or a delivery is about."""
    match event:
        case Alarm():
            return _reminder(event)
        case Finished():
            came = "ended" if event.ok else "failed"
            return (("name", event.what), *_because(f" {came}", event.text))
        case Reacted():
            reaction: Pieces = (("name", event.sender.name), ("own", " reacted with "), ("name", event.reaction))
            return (*reaction, *_because(" to your message", post[:SNIPPET_CHARS]))
        case Delivery():
            which: Pieces = (("quoted", post[:SNIPPET_CHARS]), ("own", " ")) if post.strip() else ()
            known = "could not be delivered" if event.state == "failed" else DOUBT
            return (("own", "your message "), *which, *_because(known, event.reason))
        case Named():
            return _renamed(event)
        case Link():
            return (("name", event.channel), *_because(" is up" if event.up else " is down", event.reason))


def asks(fact: Fact) -> bool:
    """Whether it asks for an answer by itself: what only reports does not."""
    return not isinstance(fact, Reacted | Delivery | Named)


_RENAMED: Final = {
    "room": "this room is now called",
    "server": "the server is now called",
    "thread": "this thread is now called",
    "topic": "the topic is now",
    "me": "you are now called",
}


def _renamed(event: Named) -> Pieces:
    """What has another name now, in one sentence."""
    parts: Pieces = ()
    for one in event.changed:
        name = getattr(event.names, one)
        words: Pieces = (("own", f"{_RENAMED[one]} "), ("quoted", name)) if name else (("own", f"the {one} is gone"),)
        parts = (*parts, ("own", "; "), *words) if parts else words
    return parts


def _reminder(alarm: Alarm) -> Pieces:
    whose: Pieces = (("own", "reminder that "), ("name", alarm.asked_by), ("own", " asked for"))
    parts: Pieces = whose if alarm.asked_by else (("own", "your reminder"),)
    due = f", due {_time(alarm.due, alarm.sent)}" if alarm.due is not None else ""
    missed = f", missed {alarm.missed} times before" if alarm.missed > 1 else ", missed once before"
    again = f", again {_time(alarm.next, alarm.sent)}" if alarm.next is not None else ""
    return (*parts, *_because(f"{due}{missed if alarm.missed else ''}{again}", alarm.text))


def _because(own: str, words: str) -> Pieces:
    return (("own", f"{own}: "), ("quoted", words)) if words.strip() else (("own", own),)


def _time(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"
