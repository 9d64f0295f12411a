"""From what the API tells to what stands in the panes. Pure: times come with the events.

Above on the left: what the agents do by themselves, and what any of them thinks while it thinks it. Below: the
conversation that is followed. On the right: every call of a tool, whole.
"""

from collections import deque
from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import Final

from gateway.console import events, say
from gateway.console.going import ConsoleActiveCall, ConsoleActiveTurn, find_newest, is_same_text, seconds_between
from gateway.console.line import PaneLine
from gateway.console.pane import Pane
from gateway.console.text import one_line

OPERATOR_CONVERSATION: Final = "console/operator"
"""The operator's own direct conversation."""
ALL_CONVERSATIONS: Final = "*"
"""Follows every conversation."""
_NORMAL_OUTCOMES: Final = frozenset({"replied", "silent", "yielded"})
_FAILED_DELIVERIES: Final = frozenset({"failed", "uncertain"})


class ConsoleModel:
    """All that is shown."""

    def __init__(self, *, zone: tzinfo | None = None, follows: str = OPERATOR_CONVERSATION) -> None:
        """`zone`: in which times are told. None: that of the system."""
        self.autonomous_pane, self.conversation_pane, self.tools_pane = Pane(), Pane(), Pane()
        self.followed = follows
        self.turns: dict[str, ConsoleActiveTurn] = {}
        self.tool_calls: dict[str, ConsoleActiveCall] = {}
        self.dmn_states: dict[str, events.ConsoleDmnState] = {}
        self.status: events.ConsoleStatus | None = None
        self.conversations: tuple[events.ConsoleConversation, ...] = ()
        """Conversations that are known, the newest first."""
        self._titles: dict[str, str] = {}
        """What people call conversations."""
        self._zone = zone
        self._agent_names: dict[str, str] = {}  # who answers where
        self._ended_turns: deque[str] = deque(maxlen=200)
        """Turns that are over, the last ones."""
        self._missing_turns: set[str] = set()
        """Turns that ran no more when the status was asked for last, and whose end was not told yet."""
        self._history_seq = 0  # up to here the conversation was filled from the log

    def apply_event(self, event: events.ConsoleApiModel) -> None:  # noqa: C901, PLR0912 - a table of kinds reads best in one piece
        """Something happened."""
        self.learn_titles([event])
        time = say.format_clock(event.at, self._zone)
        match event:
            case events.ConsoleNotification():
                self._add_notification(event, time)
            case events.ConsolePost():
                self._add_post(event, time)
            case events.ConsoleDelivery():
                if event.outcome in _FAILED_DELIVERIES and self._is_followed(event.conversation):
                    self.conversation_pane.add(
                        say.render_remark(time, f"not delivered ({event.outcome}): {event.reason}", "bad")
                    )
            case events.ConsoleFate():
                if event.fate == "refused" and self._is_followed(event.conversation):
                    self.conversation_pane.add(say.render_remark(time, f"refused by {event.rule}"))
            case events.ConsoleTurnEvent():
                self._apply_turn(event, time)
            case events.ConsoleThinkingDelta():
                self._append_thinking(event, time)
            case events.ConsoleTextDelta():
                self._append_text(event, time)
            case events.ConsoleToolEvent():
                self._apply_tool(event, time)
            case events.ConsoleDmnState():
                self._update_dmn(event, time)
            case events.ConsoleChannelState():
                reason = f": {event.reason}" if event.reason else ""
                self.autonomous_pane.add(say.render_remark(time, f"channel {event.channel} is {event.state}{reason}"))
            case events.ConsoleReload():
                self.autonomous_pane.add(
                    say.render_remark(time, say.describe_reload(event), "bad" if event.problems else "note")
                )
            case events.ConsoleLogRecord():
                words = f"{event.level} {event.logger}: {event.message}"
                self.autonomous_pane.add(say.render_remark(time, words, "note" if event.level == "warning" else "bad"))
            case events.ConsoleEventsLost():
                self.autonomous_pane.add(
                    say.render_remark(time, f"{event.count} events are missing here: they came too fast", "bad")
                )
            case _:
                pass

    def learn_titles(self, told: Iterable[events.ConsoleApiModel]) -> None:
        """What conversations are called."""
        for one in told:
            conversation = getattr(one, "conversation", "")
            if one.title and conversation:
                self._titles[conversation] = one.title

    def title(self, conversation: str) -> str:
        """What people call that conversation."""
        return self._titles.get(conversation, conversation)

    def find_conversation(self, wanted: str) -> str:
        """The conversation that somebody names: by its title if only one is called so, else as it is written."""
        named = [one for one, title in self._titles.items() if title.casefold() == wanted.strip().casefold()]
        return named[0] if len(named) == 1 else wanted

    def add_remark(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """The console itself says something, where the operator looks."""
        self.conversation_pane.add(say.render_remark(say.format_clock(at, self._zone), what, "bad" if bad else "note"))

    def add_gateway_note(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """The same about the gateway."""
        self.autonomous_pane.add(say.render_remark(say.format_clock(at, self._zone), what, "bad" if bad else "note"))

    def handle_connected(self, status: events.ConsoleStatus) -> None:
        """A connection stands, at first or again: what is said not to run any more ended meanwhile."""
        for turn in self.turns.keys() - {one.turn for one in status.activity}:
            self._end_turn(turn)
        self.tool_calls = {call: one for call, one in self.tool_calls.items() if one.turn in self.turns}
        self.update_status(status)
        for mind in status.agents:
            self._update_dmn(mind, say.format_clock(status.now, self._zone))

    def update_status(self, status: events.ConsoleStatus) -> None:
        """The gateway's state as it is now."""
        self.status = status
        self.learn_titles(status.activity)
        gone = self.turns.keys() - {one.turn for one in status.activity}
        for turn in gone & self._missing_turns:  # twice in a row: its end was lost
            self._end_turn(turn)
        self._missing_turns = gone - self._missing_turns
        for one in status.activity:
            self._agent_names[one.conversation] = one.agent
            self.turns.setdefault(
                one.turn,
                ConsoleActiveTurn(agent=one.agent, conversation=one.conversation, since=one.since, autonomous=False),
            )

    def follow(self, conversation: str, past: events.ConsoleHistory | None) -> None:
        """Show another conversation, from its newest messages on; None: from now on."""
        self.followed, self._history_seq = conversation, 0
        for turn in self.turns:
            self.conversation_pane.drop_block(f"talk {turn}")
        self.conversation_pane.clear()
        if past is not None and past.agent:
            self._agent_names[conversation] = past.agent
        for one in past.messages if past is not None else ():
            self._history_seq = max(self._history_seq, one.seq)
            who = one.who or self._agent_name(conversation)
            time = say.format_clock(one.at, self._zone)
            self.conversation_pane.add(
                say.render_message(time, who, say.message_text(one), ours=one.ours, kind=say.describe_kind(one.kind))
            )
        self.conversation_pane.scroll_to_end()

    def add_summary(self, place: events.ConsoleConversation) -> None:
        """What was said last somewhere."""
        if not place.last_text:
            return
        who = place.last_who or place.agent or "agent"
        time = say.format_clock(place.last_at, self._zone)
        self.conversation_pane.add(
            say.render_message(
                time, who, place.last_text, ours=not place.last_who, place=self.title(place.conversation)
            )
        )

    def find_call_to_kill(self) -> ConsoleActiveCall | None:
        """The tool that is meant by killing one: the newest, if possible in the conversation that is followed."""
        return find_newest(self.tool_calls.values(), lambda call: self._is_followed(call.conversation))

    def find_turn_to_stop(self) -> ConsoleActiveTurn | None:
        """The turn that is meant by stopping one: likewise, then one that nobody asked for."""
        turns = self.turns.values()
        return find_newest(turns, lambda turn: self._is_followed(turn.conversation), lambda turn: turn.autonomous)

    def needs_confirmation(self, turn: ConsoleActiveTurn) -> bool:
        """Whether stopping it takes something from people who are not looked at."""
        return not turn.autonomous and not self._is_followed(turn.conversation)

    def _agent_name(self, conversation: str) -> str:
        """Which agent speaks there."""
        return self._agent_names.get(conversation) or (
            next(iter(self.dmn_states)) if len(self.dmn_states) == 1 else "agent"
        )

    def _place_title(self, conversation: str) -> str:
        return self.title(conversation) if self.followed == ALL_CONVERSATIONS else ""

    def _is_followed(self, conversation: str) -> bool:
        return bool(conversation) and self.followed in (ALL_CONVERSATIONS, conversation)

    def _add_notification(self, event: events.ConsoleNotification, time: str) -> None:
        if not self._is_followed(event.conversation) or 0 < event.seq <= self._history_seq:
            return
        said, kind = say.message_text(event), say.describe_kind(event.kind)
        self.conversation_pane.add(
            say.render_message(
                time, event.who, said, ours=False, place=self._place_title(event.conversation), kind=kind
            )
        )

    def _add_post(self, event: events.ConsolePost, time: str) -> None:
        if not self._is_followed(event.conversation) or 0 < event.seq <= self._history_seq:
            return
        for key, turn in self.turns.items():
            if turn.conversation == event.conversation and is_same_text(turn.written_text, event.text):
                turn.written_text = ""
                self.conversation_pane.drop_block(f"talk {key}")
        who, place = self._agent_name(event.conversation), self._place_title(event.conversation)
        self.conversation_pane.add(say.render_message(time, who, event.text, ours=True, place=place))

    def _apply_turn(self, event: events.ConsoleTurnEvent, time: str) -> None:
        self._agent_names[event.conversation] = event.agent
        if event.state == "started":
            self.turns[event.turn] = ConsoleActiveTurn(
                agent=event.agent, conversation=event.conversation, since=event.at, autonomous=event.autonomous
            )
            if event.autonomous:
                self.autonomous_pane.add(
                    [
                        say.render_heading(
                            time, f"{event.agent} starts by itself: {event.cause}", self.title(event.conversation)
                        )
                    ]
                )
            return
        before = self.turns.get(event.turn)
        seconds = seconds_between(before.since if before else None, event.at)
        self._end_turn(event.turn)
        if event.autonomous:
            self.autonomous_pane.add(
                say.render_remark(time, f"{event.agent} is done: {say.describe_turn_end(event, seconds)}")
            )
        elif event.outcome not in _NORMAL_OUTCOMES and self._is_followed(event.conversation):
            self.conversation_pane.add(
                say.render_remark(time, f"{event.agent} {event.outcome or 'ended'}: nothing more comes", "bad")
            )

    def _end_turn(self, key: str) -> None:
        turn = self.turns.pop(key, None)
        self._ended_turns.append(key)
        self.autonomous_pane.finish_block(f"think {key}")
        self.autonomous_pane.finish_block(f"write {key}")
        self.conversation_pane.drop_block(f"talk {key}")  # what was to be said of it was posted
        if turn is not None:
            self.tool_calls = {call: one for call, one in self.tool_calls.items() if one.turn != key}

    def _append_thinking(self, event: events.ConsoleThinkingDelta, time: str) -> None:
        head = f"{time} {event.agent} thinks, in {one_line(self.title(event.conversation), 60)}"
        line = PaneLine((("thinking", head),), 2, "thinking")
        self.autonomous_pane.append_delta(f"think {event.turn}", event.delta, head=[line], tone="thinking", indent=2)
        if event.turn in self._ended_turns:
            self.autonomous_pane.finish_block(f"think {event.turn}")
        else:
            self._ensure_turn(event)

    def _append_text(self, event: events.ConsoleTextDelta, time: str) -> None:
        if event.turn in self._ended_turns:  # the log told the end before its last words were gathered
            if event.autonomous:
                self.autonomous_pane.add(say.render_text(event.delta))
            return
        self.autonomous_pane.finish_block(f"think {event.turn}")
        turn = self._ensure_turn(event)
        if event.begins:
            turn.written_text = ""
            self.autonomous_pane.finish_block(f"write {event.turn}")
            self.conversation_pane.drop_block(f"talk {event.turn}")
        if event.autonomous:
            head = say.render_heading(time, f"{event.agent} writes", self.title(event.conversation))
            self.autonomous_pane.append_delta(f"write {event.turn}", event.delta, head=[head], indent=2)
        if self._is_followed(event.conversation):
            turn.written_text += event.delta
            head = PaneLine((("time", f"{time} "), ("ours", event.agent), ("time", "  is writing ...")), 2)
            self.conversation_pane.append_delta(
                f"talk {event.turn}", event.delta, head=[head], tone="note", indent=4, held=True
            )

    def _ensure_turn(self, event: events.ConsoleTextDelta) -> ConsoleActiveTurn:
        """The turn in which that is written; its beginning may not have been told."""
        made = ConsoleActiveTurn(
            agent=event.agent, conversation=event.conversation, since=event.at, autonomous=event.autonomous
        )
        return self.turns.setdefault(event.turn, made)

    def _apply_tool(self, event: events.ConsoleToolEvent, time: str) -> None:
        self.autonomous_pane.finish_block(f"think {event.turn}")
        self.autonomous_pane.finish_block(f"write {event.turn}")
        if event.state == "started":
            self.tool_calls[event.call] = ConsoleActiveCall(
                turn=event.turn, name=event.name, conversation=event.conversation, since=event.at
            )
            self.tools_pane.add(say.render_tool_call(time, event, self.title(event.conversation)))
            return
        before = self.tool_calls.pop(event.call, None)
        self.tools_pane.add(
            say.render_tool_result(time, event, seconds_between(before.since if before else None, event.at))
        )

    def _update_dmn(self, mind: events.ConsoleDmnState, time: str) -> None:
        before = self.dmn_states.get(mind.agent)
        self.dmn_states[mind.agent] = mind
        if before is None or (before.mode, before.quiet, before.held) != (mind.mode, mind.quiet, mind.held):
            self.autonomous_pane.add(say.render_remark(time, say.describe_dmn(mind)))
