"""What happened and is no message, as the model is told of it: one line in the frame's own words. Pure."""

from datetime import datetime
from typing import Final, Literal

from gateway.events import Alarm, ConnectionChanged, DeliveryReport, PlaceRenamed, ReactionChanged, TaskFinished
from gateway.records import Fact

SystemEvent = Alarm | TaskFinished | ReactionChanged | DeliveryReport | ConnectionChanged | PlaceRenamed
NoticePieces = tuple[tuple[Literal["own", "name", "quoted"], str], ...]
"""As `agent.brief.PromptLine.happened`."""

SYSTEM_EVENTS: Final = (Alarm, TaskFinished, ReactionChanged, DeliveryReport, ConnectionChanged, PlaceRenamed)
DELIVERY_DOUBT: Final = (
    'may or may not have been delivered (whoever waited for it may say "again" to see it once more; '
    "do not repeat it unasked)"
)
POST_SNIPPET_CHARS: Final = 80
"""Of a post of ours: enough to know it again."""


def render_system_event(event: SystemEvent, post: str = "") -> NoticePieces:
    """The line. `post`: how the post of ours began that a reaction or a delivery is about."""
    match event:
        case Alarm():
            return _render_reminder(event)
        case TaskFinished():
            came = "ended" if event.ok else "failed"
            return (("name", event.what), *_with_reason(f" {came}", event.text))
        case ReactionChanged():
            reaction: NoticePieces = (("name", event.sender.name), ("own", " reacted with "), ("name", event.reaction))
            return (*reaction, *_with_reason(" to your message", post[:POST_SNIPPET_CHARS]))
        case DeliveryReport():
            which: NoticePieces = (("quoted", post[:POST_SNIPPET_CHARS]), ("own", " ")) if post.strip() else ()
            known = "could not be delivered" if event.state == "failed" else DELIVERY_DOUBT
            return (("own", "your message "), *which, *_with_reason(known, event.reason))
        case PlaceRenamed():
            return _render_rename(event)
        case ConnectionChanged():
            return (("name", event.channel), *_with_reason(" is up" if event.up else " is down", event.reason))


def wants_answer(fact: Fact) -> bool:
    """Whether it asks for an answer by itself: what only reports does not."""
    return not isinstance(fact, ReactionChanged | DeliveryReport | PlaceRenamed)


_RENAME_TEXTS: Final = {
    "room": "this room is now called",
    "server": "the server is now called",
    "thread": "this thread is now called",
    "topic": "the topic is now",
    "me": "you are now called",
}


def _render_rename(event: PlaceRenamed) -> NoticePieces:
    """What has another name now, in one sentence."""
    parts: NoticePieces = ()
    for one in event.changed:
        name = getattr(event.names, one)
        words: NoticePieces = (
            (("own", f"{_RENAME_TEXTS[one]} "), ("quoted", name)) if name else (("own", f"the {one} is gone"),)
        )
        parts = (*parts, ("own", "; "), *words) if parts else words
    return parts


def _render_reminder(alarm: Alarm) -> NoticePieces:
    whose: NoticePieces = (("own", "reminder that "), ("name", alarm.asked_by), ("own", " asked for"))
    parts: NoticePieces = whose if alarm.asked_by else (("own", "your reminder"),)
    due = f", due {_format_time(alarm.due, alarm.sent)}" if alarm.due is not None else ""
    missed = f", missed {alarm.missed} times before" if alarm.missed > 1 else ", missed once before"
    again = f", again {_format_time(alarm.next, alarm.sent)}" if alarm.next is not None else ""
    return (*parts, *_with_reason(f"{due}{missed if alarm.missed else ''}{again}", alarm.text))


def _with_reason(own: str, words: str) -> NoticePieces:
    return (("own", f"{own}: "), ("quoted", words)) if words.strip() else (("own", own),)


def _format_time(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"
