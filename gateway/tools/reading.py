"""What was said in a place, and who is there: told as far as the turn that asks may see it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from agent.brief import PromptLine
from agent.journal import to_single_line
from agent.prompt import render_line
from agent.tools.rooms import ReadRoomArgs, WhoArgs
from agent.tools.schema import ToolCallRefused
from channels.base import CanListMembers, Channel, RoomMembers, SendError
from gateway.bindings import Bindings
from gateway.describe import describe_attachment
from gateway.events import Address, ChannelName, Message, Sender
from gateway.hands import ToolContext, ToolOutput
from gateway.hearing import ConversationReader, CurrentMessage
from gateway.hits import sanitize_name
from gateway.labels import ANYBODY_ROLE, TRUSTED_LABEL, TrustLabel
from gateway.media import DescribedAttachment
from gateway.places import PrivacyCache
from gateway.records import MESSAGE_KINDS, Seq, is_inner
from gateway.standing import ROLE_ORDER, AccessPolicy, role_of
from gateway.store import LogEntry, StoreReader
from gateway.tools.messages import AgentPost, MessageFinder

UNKNOWN_PLACE: Final = (
    "There is no place with that address that may be told of here. An address is written like irc.libera/#python; "
    "left out, it is this place."
)
BAD_BEFORE: Final = "`before` is a handle that read_room has shown, e.g. m12."
MAX_PEOPLE: Final = 50
_UNTRUSTED_LABEL: Final = TrustLabel(ANYBODY_ROLE)
_MAX_LATELY: Final = 200
"""Messages that are looked through for who spoke."""
_PAGE_ENTRIES: Final = 100
_MAX_PAGES: Final = 5
"""So many pages are looked at: what may not be told must not hide what may."""
_MAX_HANDLE_DIGITS: Final = 18


class AttachmentDescriber:
    """What came beside words is only described, as it was told: `gateway.hearing.AttachmentSource`."""

    async def describe_attachments(
        self,
        messages: Sequence[tuple[Seq, Message]],
        *,
        sees: bool,  # noqa: ARG002 - nothing is shown
    ) -> dict[Seq, tuple[DescribedAttachment, ...]]:
        """A line for each."""
        return {
            seq: tuple(DescribedAttachment(describe_attachment(one)) for one in said.attachments)
            for seq, said in messages
        }


class RoomReader:
    """Looks at places."""

    def __init__(
        self,
        *,
        reader: StoreReader,
        places: PrivacyCache,
        bindings: Bindings,
        who: AccessPolicy,
        channels: Mapping[ChannelName, Channel],
        hearing: ConversationReader,
        messages: MessageFinder,
    ) -> None:
        self._reader = reader
        self._privacy = places
        self._bindings = bindings
        self._access_policy = who
        self._channels = channels
        self._conversation = hearing
        self._message_finder = messages

    async def read_room(self, asked: ReadRoomArgs, where: ToolContext) -> ToolOutput:
        """Carry out `read_room`. Raises Refused and StoreError."""
        at = await self._resolve_place(asked.address, where)
        lines, more, label = await self._collect_lines(at, _parse_before(asked.before), asked.count, where)
        await self._privacy.titles.load([at.conversation])
        place = self._privacy.titles.label(at.conversation)
        if lines:
            head = f"{place}, {len(lines)} messages, the newest last."
            head += f" What was said before them: before={_format_handle(lines[0][0])}" if more else ""
        else:
            head = f"{place}: nothing was said there that you were told{' before that' if asked.before else ''}."
        told = [f"{_format_handle(seq)} {line}" for seq, line in lines]
        return self._build_output("\n".join([head, *told]), "messages", at, where, label)

    async def list_people(self, asked: WhoArgs, where: ToolContext) -> ToolOutput:
        """Carry out `who`. Raises Refused and StoreError."""
        at = await self._resolve_place(asked.address, where)
        await self._privacy.titles.load([at.conversation])
        note = ""
        channel: object = self._channels.get(at.channel)
        if isinstance(channel, CanListMembers):
            try:
                return self._build_output(
                    self._render_people(at, await channel.list_members(at, most=MAX_PEOPLE)), "people", at, where
                )
            except SendError as error:
                note = f"Who is there was not told ({to_single_line(error.reason, 200)}). "
        return self._build_output(note + await self._render_recent_speakers(at, where), "people", at, where)

    @staticmethod
    def _build_output(
        text: str, kind: str, at: Address, where: ToolContext, label: TrustLabel = _UNTRUSTED_LABEL
    ) -> ToolOutput:
        foreign = at != where.at or bool(label.foreign)
        return ToolOutput(
            text=text, kind=kind, origin=at.conversation, is_untrusted=True, is_foreign=foreign, role=label.role
        )

    async def _resolve_place(self, address: str | None, where: ToolContext) -> Address:
        """Where is meant. Nobody learns of a place that may not be told of whether it exists."""
        if not (address or "").strip():
            if is_inner(where.at.conversation):
                raise ToolCallRefused("You are by yourself here: name the place by its address.")
            return where.at
        titles = self._privacy.titles
        found = [at for at in titles.find_places(address or "", [where.at]) if await self._is_visible(at, where)]
        if not found:
            raise ToolCallRefused(UNKNOWN_PLACE)
        if len(found) > 1:
            named = ", ".join(titles.label(at.conversation) for at in found)
            raise ToolCallRefused(f"Several places are called so: {named}. Name one by the address in parentheses.")
        return found[0]

    async def _is_visible(self, at: Address, where: ToolContext) -> bool:
        """Whether that place may be told of in this turn."""
        if at == where.at and not is_inner(at.conversation):
            return True
        bound = self._bindings.find(at)
        mine = at.channel in self._channels and bound.agent == where.agent and bound.listen != "off"
        return mine and where.visibility.can_see(await self._privacy.scope(at.conversation))

    async def _collect_lines(
        self, at: Address, before: int | None, count: int, where: ToolContext
    ) -> tuple[list[tuple[Seq, str]], bool, TrustLabel]:
        """The newest, whether there is something before them, and whose words they are."""
        found, label = list[tuple[Seq, str]](), TRUSTED_LABEL
        for _ in range(_MAX_PAGES):
            page = await self._reader.newest_entries(
                _PAGE_ENTRIES, before=before, kinds=(*MESSAGE_KINDS, "post"), conversation=at.conversation
            )
            for one in reversed(page):
                if len(found) == count:
                    return found[::-1], True, label
                told = at == where.at or where.visibility.can_see(await self._privacy.scope(at.conversation, one.seq))
                if told and (line := await self._render_entry(one, where.agent)) is not None:
                    found.append((one.seq, line[0]))
                    label |= line[1]
            if len(page) < _PAGE_ENTRIES:
                return found[::-1], False, label
            before = page[0].seq
        return found[::-1], True, label

    async def _render_entry(self, one: LogEntry, agent: str) -> tuple[str, TrustLabel] | None:
        """Also whose words it is. None: it was taken away, taken back, or never to be told to the model."""
        if any(placed.is_removed for placed in await self._reader.locate_entries([one.cause or one.seq])):
            return None
        if isinstance(one.fact, Message):
            said = await self._message_finder.current_message(one)
            if said is None:
                return None
            standing = CurrentMessage(one.seq, said, is_edited=said.text != one.fact.text)
            (heard,) = await self._conversation.render([standing], sees=False)
            return render_line(heard.line), heard.label
        ours = await self._message_finder.find_post(one)
        if ours is None or ours.is_gone:
            return None
        label = await self._conversation.label_of_post(ours.post)
        return render_line(_post_line(ours, one.at, agent)), label | _UNTRUSTED_LABEL if ours.edited else label

    def _render_people(self, at: Address, found: RoomMembers) -> str:
        people = sorted(
            ((self._current_role(at, one), one) for one in found.members), key=lambda pair: -ROLE_ORDER.index(pair[0])
        )
        total = f" of {found.total}" if found.total is not None else ""
        place = self._privacy.titles.label(at.conversation)
        head = f"{place}, {len(people)}{total} people. {to_single_line(found.note, 300)}".rstrip()
        return "\n".join([head, *(_format_person(role, one) for role, one in people)])

    async def _render_recent_speakers(self, at: Address, where: ToolContext) -> str:
        """Who spoke there lately, whoever was heard."""
        lately = await self._reader.newest_entries(_MAX_LATELY, kinds=MESSAGE_KINDS, conversation=at.conversation)
        spoke = dict[str, tuple[Sender, datetime]]()
        for one in reversed(lately):
            if at != where.at and not where.visibility.can_see(await self._privacy.scope(at.conversation, one.seq)):
                continue
            judged = await self._reader.find_judgement(one.seq)
            if isinstance(one.fact, Message) and judged is not None and judged.fate in ("due", "context"):
                spoke.setdefault(one.fact.sender.id, (one.fact.sender, one.at))
        lines = [
            f"{_format_person(self._current_role(at, sender), sender)}, at {last:%Y-%m-%d %H:%M} UTC"
            for sender, last in list(spoke.values())[:MAX_PEOPLE]
        ]
        place = self._privacy.titles.label(at.conversation)
        head = f"{place}: {'who spoke there, the last first:' if lines else 'nobody spoke there yet.'}"
        return "\n".join([head, *lines])

    def _current_role(self, at: Address, sender: Sender) -> str:
        return role_of(self._access_policy, at, sender)


def _post_line(ours: AgentPost, at: datetime, agent: str) -> PromptLine:
    file, states = ours.post.file, {"": "not delivered yet", "failed": "not delivered", "uncertain": "perhaps unseen"}
    beside = [f"[file {sanitize_name(file.name)}]"] if file is not None else []
    beside += [f"[{states[ours.state]}]"] if ours.state in states else []
    return PromptLine(
        sender="you" if ours.agent in ("", agent) else ours.agent,
        role="agent",
        sent=at,
        text=ours.text,
        is_addressed=True,
        is_edited=ours.edited,
        attachments=tuple(beside),
    )


def _format_person(role: str, sender: Sender) -> str:
    return f"{sanitize_name(sender.name)} ({role}{', bot' if sender.is_bot else ''})"


def _format_handle(seq: int) -> str:
    return f"m{seq}"


def _parse_before(handle: str | None) -> int | None:
    """A position: where it is from does not matter, it only bounds."""
    if not (handle or "").strip():
        return None
    digits = (handle or "").strip(" \t\r\n\"'`()[]<>").lower().removeprefix("m")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_HANDLE_DIGITS):
        raise ToolCallRefused(BAD_BEFORE)
    return int(digits)
