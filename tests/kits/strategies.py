"""Hypothesis strategies for the whole vocabulary: `gateway/core/events.py` and
`gateway/core/facts.py`.

Fields that are not named here are inferred from their types, so a new field is covered at once.
"""

from datetime import UTC

from hypothesis import strategies as st

from gateway.core import events
from gateway.core.events import ChannelName, ConversationId, MessageId, PostKey, RoomId, ThreadId
from gateway.core.facts import (
    AttentionThresholdSet,
    AudienceReported,
    AuditRecord,
    ChannelCardPinned,
    CodeEnded,
    CodeIssued,
    CompactionLocked,
    CompactionSummary,
    ConversationRewound,
    CursorMoved,
    DmnDirective,
    DmnStateSaved,
    Evidence,
    Fact,
    IdentityLinked,
    Judgement,
    LimitReached,
    MediaRef,
    MemoryConsolidated,
    ModelSelected,
    MonthArchived,
    NoteForgotten,
    NoteWritten,
    OwnerTold,
    PartSendEnded,
    PartSendStarted,
    PlatformAction,
    PostQueued,
    PreviewEnded,
    PreviewShown,
    RoleAssigned,
    RoomAccessChanged,
    RoomAssigned,
    RoomAttended,
    Seq,
    ToolRefused,
    ToolStarted,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
)
from gateway.plugins.approvals import ApprovalEnded, ApprovalRequested
from gateway.plugins.mcp import McpToolApproved
from gateway.plugins.reminders import ReminderEnded, ReminderSet

_FIRST_SEQ, _LAST_SEQ = 1, 2**53
"""What SQLite and every JSON reader hold exactly."""

texts = st.text(max_size=40)
names = st.text(min_size=1, max_size=12)
times = st.datetimes(timezones=st.just(UTC))
counts = st.integers(0, _LAST_SEQ)
seqs = st.integers(_FIRST_SEQ, _LAST_SEQ).map(Seq)

addresses = st.builds(
    events.Address,
    channel=names.map(ChannelName),
    room=names.map(RoomId),
    thread=st.none() | names.map(ThreadId),
)
senders = st.builds(
    events.Sender, account=st.none() | texts, is_bot=st.booleans(), verified=st.booleans()
)
attachments = st.builds(
    events.Attachment,
    name=st.none() | texts,
    content_type=st.none() | texts,
    size_bytes=st.none() | counts,
)
messages = st.builds(
    events.Message,
    at=addresses,
    sender=senders,
    sent=times,
    reply_to=st.none() | texts.map(MessageId),
    attachments=st.lists(attachments, max_size=3).map(tuple),
    language=st.none() | st.sampled_from(["en", "de-CH"]),
)
edits = st.builds(events.MessageEdited, at=addresses, sender=senders, sent=times)
deletions = st.builds(events.MessageDeleted, at=addresses, sent=times, sender=st.none() | senders)
reactions = st.builds(events.ReactionChanged, at=addresses, sender=senders, sent=times)
memberships = st.builds(
    events.MembershipChanged,
    at=addresses,
    sender=senders,
    sent=times,
    subject=st.none() | texts,
    text=st.none() | texts,
)
named = st.builds(
    events.PlaceRenamed,
    at=addresses,
    names=st.builds(
        events.PlaceNames, room=st.none() | texts, person=st.none() | texts, topic=st.none() | texts
    ),
    sent=times,
)
commands = st.builds(events.Command, at=addresses, sender=senders, sent=times)
links = st.builds(events.ConnectionChanged, sent=times)
alarms = st.builds(
    events.Alarm,
    sent=times,
    at=st.none() | addresses,
    agent=texts,
    reminder=texts,
    due=st.none() | times,
    next=st.none() | times,
)
finished = st.builds(events.TaskFinished, sent=times, at=st.none() | addresses)
deliveries = st.builds(events.DeliveryReport, at=addresses, sent=times)

notifications: st.SearchStrategy[events.Notification] = st.one_of(
    messages,
    edits,
    deletions,
    reactions,
    memberships,
    named,
    commands,
    links,
    alarms,
    finished,
    deliveries,
)
"""Every notification."""

posts = st.builds(
    events.Post,
    to=addresses,
    text=texts.filter(lambda text: bool(text.strip())),
    reply_to=st.none() | texts.map(MessageId),
    style=st.sampled_from(["message", "notice"]),
)
usages = st.builds(
    events.Usage,
    input_tokens=counts,
    cache_read_tokens=counts,
    cache_write_tokens=counts,
    cache_write_1h_tokens=counts,
    output_tokens=counts,
)
accounts = st.builds(
    events.RequestUsage,
    blocks=st.lists(
        st.builds(events.BlockUsage, tokens=counts, read=counts, written=counts), max_size=3
    ).map(tuple),
    usage=usages,
    cost_usd=st.none() | st.floats(0, 1e6),
)
judgements = st.builds(Judgement)
media = st.builds(MediaRef, line=seqs, size_bytes=counts, width=counts, height=counts)
turns_ended = st.builds(
    TurnRecord,
    media=st.lists(media, max_size=2).map(tuple),
    covers=st.lists(seqs, max_size=4).map(tuple),
    omitted=counts,
    upto=counts.map(Seq),
    usage=usages,
    requests=counts,
    accounts=st.lists(accounts, max_size=2).map(tuple),
    looked=st.lists(st.tuples(texts.map(ConversationId), seqs), max_size=2).map(tuple),
)
folds = st.builds(
    ViewFolded,
    start=seqs,
    summed=counts.map(Seq),
    trimmed=counts.map(Seq),
    spared=counts,
    kinds=st.lists(texts, max_size=3).map(tuple),
    summary=st.none()
    | st.builds(
        CompactionSummary,
        turns=counts,
        tokens_before=counts,
        tokens_after=counts,
        tries=counts,
        took_s=st.floats(0, 1e6),
        usage=usages,
        cost_usd=st.none() | st.floats(0, 1e6),
    ),
)
locks = st.builds(CompactionLocked, until=times)
evidence = st.builds(Evidence)
rewound = st.builds(
    ConversationRewound, first=seqs, last=seqs, again=st.lists(seqs, max_size=3).map(tuple)
)
cards = st.builds(ChannelCardPinned)
queued = st.builds(PostQueued, post=posts)
post_keys = texts.map(PostKey)
sendings = st.builds(
    PartSendStarted,
    post=post_keys,
    part=counts,
    bodies=st.none() | st.lists(texts, max_size=3).map(tuple),
)
parts_ended = st.builds(
    PartSendEnded,
    post=post_keys,
    part=counts,
    ids=st.lists(texts.map(MessageId), max_size=3).map(tuple),
)
previews = st.builds(PreviewShown, at=addresses, message=texts.map(MessageId))
previews_ended = st.builds(PreviewEnded, at=addresses, message=texts.map(MessageId))
cursors = st.builds(CursorMoved)
dmn_states = st.builds(DmnStateSaved)
handled = st.builds(UnreadDismissed, upto=seqs)
attended = st.builds(RoomAttended, at=addresses)
told = st.builds(OwnerTold, to=addresses, about=st.none() | addresses)
reminded = st.builds(ReminderSet, at=st.none() | addresses, due=times)
reminders_ended = st.builds(ReminderEnded)
noted = st.builds(NoteWritten)
dreamed = st.builds(MemoryConsolidated, upto=seqs)
directed = st.builds(DmnDirective, until=st.none() | times)
approvals_asked = st.builds(ApprovalRequested, until=times)
approvals_ended = st.builds(ApprovalEnded)
refused = st.builds(ToolRefused)
begun = st.builds(ToolStarted)
acted = st.builds(PlatformAction, at=addresses)
forgotten = st.builds(NoteForgotten, note=seqs)
codes_given = st.builds(CodeIssued, at=addresses, room=st.none() | addresses, until=times)
rooms_opened = st.builds(RoomAccessChanged, room=addresses)
audiences = st.builds(AudienceReported, at=addresses)
codes_over = st.builds(CodeEnded)
roles_given = st.builds(RoleAssigned)
identities = st.builds(IdentityLinked)
thresholds = st.builds(AttentionThresholdSet)
models_chosen = st.builds(ModelSelected)
rooms_assigned = st.builds(RoomAssigned, room=addresses)
named = st.builds(events.PlaceRenamed, at=addresses, sent=times)
mcp_tools_approved = st.builds(McpToolApproved)
limited = st.builds(LimitReached)
archived = st.builds(MonthArchived)
audited = st.builds(AuditRecord, at=st.none() | addresses)

facts: st.SearchStrategy[Fact] = st.one_of(
    notifications,
    judgements,
    turns_ended,
    folds,
    locks,
    evidence,
    rewound,
    cards,
    queued,
    sendings,
    parts_ended,
    previews,
    previews_ended,
    cursors,
    handled,
    attended,
    told,
    reminded,
    reminders_ended,
    noted,
    dreamed,
    directed,
    dmn_states,
    approvals_asked,
    approvals_ended,
    refused,
    begun,
    acted,
    forgotten,
    codes_given,
    codes_over,
    roles_given,
    rooms_opened,
    audiences,
    identities,
    thresholds,
    models_chosen,
    rooms_assigned,
    named,
    mcp_tools_approved,
    limited,
    archived,
    audited,
)
"""Every fact."""
