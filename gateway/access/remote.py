"""A channel whose connection another process holds: its abilities are calls to that process.

In every process `Channels` has an object for each channel: the adapter itself in the process that holds its lease, and
a `RemoteChannel` in the others. That has exactly the abilities of the adapter:

- Coroutines (react, download, membership, ...) are carried out by the holder. `serve_channels` does so there.
- What is answered at once is answered by an adapter of the same settings that never connects: it knows what follows
  from the settings (capabilities, split, direct rooms, pages), and of the state of the connection nothing, for which
  the contract has an answer: `None`. `RemoteChannel.ask` asks the holder.

Arguments and results are checked by the types of the contract at both ends.
"""

import inspect
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, Protocol, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import PydanticSerializationError
from typing_extensions import get_protocol_members

from channels import base
from channels.base import (
    MEMBERSHIP_TIMEOUT_S,
    Announce,
    BeforeSend,
    Capabilities,
    Channel,
    Emit,
    Part,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    no_announcement,
    no_before_send,
)
from gateway.cluster.cluster import CallFailed, Cluster, channel_lease
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, MessageId, Post, Receipt

logger = logging.getLogger("reverie.remote")

ASK_TIMEOUT_S: Final = 2.0
"""Longest wait for what the holder's adapter knows already, or for an indicator."""
ACT_TIMEOUT_S: Final = 60.0
"""Longest wait for an action: more than adapters wait for one answer of their platform (IRC's JOIN: 30 s)."""
ANSWER_AGE_S: Final = 1.0
"""Time for which an answer of `ask` is used again: a turn asks for the same place many times."""
_MAX_ANSWERS: Final = 1_000

ABILITIES: Final[Sequence[type]] = (
    base.CanType,
    base.CanPreview,
    base.CanDownload,
    base.CanPage,
    base.HasSpaces,
    base.HasAudience,
    base.KnowsMembers,
    base.HasPlaceNames,
    base.HasRooms,
    base.HasNick,
    base.KnowsRecipients,
    base.KnowsPostingRights,
    base.CanOpenDirect,
    base.CanDirectMessage,
    base.FindsSent,
    base.CanCompleteCommands,
    base.CanSetCommandMenus,
    base.CanLeave,
    base.CanJoin,
    base.CanApplyConfig,
    base.CanReact,
    base.CanEdit,
    base.KnowsJoinRefusals,
    base.KnowsAccountProblem,
    base.CountsDropped,
    base.CanDelete,
    base.CanSetTopic,
    base.CanListMembers,
)
QUESTIONS: Final = frozenset({"space", "audience", "is_joined"})
"""Methods that tell the state of the connection at once: `RemoteChannel.ask`."""
HOLDER_ONLY: Final = frozenset({"wait_for_recipient", "wait_for_rights"})
"""Coroutines that only the outbox of the holder uses."""
_TOLD: Final = frozenset({"typing"})
"""Coroutines whose end nobody waits for."""
_NEVER_FAIL: Final = frozenset({*_TOLD, "set_command_menus", "membership"})
"""Coroutines that raise only cancellation."""
_TIMEOUTS_S: Final[Mapping[str, float]] = {
    "typing": ASK_TIMEOUT_S,
    "membership": MEMBERSHIP_TIMEOUT_S + ASK_TIMEOUT_S,
    **dict.fromkeys(QUESTIONS, ASK_TIMEOUT_S),
}

_STRICT: Final = ConfigDict(
    strict=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
)
_CALL, _ANNOUNCE = "channel", "channel_announce"
"""Names of the calls: to the holder, and back to the process that shows a preview."""


class _Call(BaseModel):
    """Arguments of the call to a holder."""

    model_config = _STRICT
    channel: ChannelName
    method: str
    arguments: str
    """JSON text."""
    announce: int | None = None
    """Number of the callback that records a provisional id. None: there is none."""


class _Announcement(BaseModel):
    """Arguments of the call back."""

    model_config = _STRICT
    channel: ChannelName
    announce: int
    message: MessageId


class _Failure(BaseModel):
    """A `SendError`."""

    model_config = _STRICT
    kind: Literal[
        "SendError",
        "Denied",
        "Unreachable",
        "RateLimited",
        "RecipientAway",
        "Rejected",
        "MayNotPost",
        "Uncertain",
        "Unsettled",
    ]
    reason: str
    retry_after_s: float = 0.0

    @classmethod
    def of(cls, error: SendError) -> "_Failure":
        """Return an error of the contract, or of an adapter's subclass of one."""
        kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == base.__name__)
        return cls.model_validate(
            {"kind": kind, "reason": error.reason, "retry_after_s": float(getattr(error, "retry_after_s", 0.0))}
        )

    def to_error(self) -> SendError:
        """Reverse `of`."""
        kind = cast("type[SendError]", getattr(base, self.kind))
        if self.kind in ("Denied", "RateLimited"):
            return cast("Callable[..., SendError]", kind)(self.reason, retry_after_s=self.retry_after_s)
        return kind(self.reason)


class _Answer(BaseModel):
    """Result of the call to a holder: one of these."""

    model_config = _STRICT
    value: str | None = None
    """JSON text."""
    failure: _Failure | None = None
    refused: str = ""
    """Reason why nothing was carried out."""


class RemoteMethod(NamedTuple):
    """A method that the holder carries out."""

    ability: type
    signature: inspect.Signature
    arguments: type[BaseModel]
    result: type[BaseModel]
    """Has one field, `value`."""


@cache
def remote_methods() -> Mapping[str, RemoteMethod]:
    """Return every method that the holder carries out, by name. One process alone needs none, and builds none."""
    methods = dict[str, RemoteMethod]()
    for ability in ABILITIES:
        for name in get_protocol_members(ability):
            function = getattr(ability, name, None)
            if name in QUESTIONS or (inspect.iscoroutinefunction(function) and name not in HOLDER_ONLY):
                assert function is not None
                hints, signature = get_type_hints(function), inspect.signature(function)
                result = hints.pop("return")
                fields: dict[str, Any] = {one: (hints[one], ...) for one in hints if one != "announce"}
                methods[name] = RemoteMethod(
                    ability,
                    signature,
                    create_model(f"{name} arguments", __config__=_STRICT, **fields),
                    create_model(f"{name} result", __config__=_STRICT, value=(result or NoneType, ...)),
                )
    return methods


class RemoteChannel:
    """A channel of `gateway.access.channels.Channels` that another process holds. `build_remote_channel` makes it."""

    def __init__(self, adapter: Channel, cluster: Cluster, clock: Clock) -> None:
        self._adapter, self._cluster, self._clock = adapter, cluster, clock
        self._answers = dict[tuple[object, ...], tuple[float, Any]]()
        """Answers of `ask`, with the time until which they count."""
        self._silent_until_s = 0.0
        """Time until which nothing is asked, because the holder did not answer."""
        self._announces = dict[int, Announce]()
        """Callbacks of the previews that are being shown."""
        self._numbers = itertools.count(1)

    @property
    def name(self) -> ChannelName:
        return self._adapter.name

    @property
    def capabilities(self) -> Capabilities:
        return self._adapter.capabilities

    def split(self, post: Post) -> tuple[str, ...]:
        return self._adapter.split(post)

    async def run(self, emit: Emit) -> None:  # noqa: ARG002 - the contract
        raise AssertionError(f"{self.name} is run by the process that holds it")

    async def send(self, part: Part, before_send: BeforeSend = no_before_send) -> Receipt:  # noqa: ARG002 - as above
        raise AssertionError(f"posts to {self.name} are delivered by the process that holds it")

    async def ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - as of the method
        """Return what one of `QUESTIONS` tells at the holder. None: it is not known, also if the holder is silent.

        The answer may be `ANSWER_AGE_S` old. Raises only cancellation.
        """
        now_s, question = self._clock.monotonic(), (method, *arguments)
        until_s, answer = self._answers.get(question, (now_s, None))
        if now_s < until_s:
            return answer
        if now_s < self._silent_until_s:
            return None
        try:
            answer = await self._carry_out(method, *arguments)
        except SendError as error:
            logger.info("%s: %s is not known: %s", self.name, method, error.reason)
            self._silent_until_s = self._clock.monotonic() + ASK_TIMEOUT_S
            return None
        if len(self._answers) >= _MAX_ANSWERS:
            self._answers.clear()
        self._answers[question] = self._clock.monotonic() + ANSWER_AGE_S, answer
        return answer

    async def call_holder(self, method: str, arguments: Any, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        """Let the process that holds this channel carry out a call. Raises CallFailed."""
        holder = self._cluster.holder(channel_lease(self.name))
        if holder is None:
            raise CallFailed(f"no process holds {self.name} just now", is_refused=True)
        return await self._cluster.call(holder.number, method, arguments, timeout_s=timeout_s)

    async def announce(self, number: int, message: MessageId) -> None:
        """Record the provisional id of a preview that the holder is about to show."""
        if (announce := self._announces.get(number)) is None:
            raise CallFailed("this preview is not wanted any more", is_refused=True)
        await announce(message)

    async def _carry_out(self, name: str, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as of the method
        """Let the holder carry out one of `remote_methods`, and return its result; None of those `_TOLD`.

        Raises SendError.
        """
        method = remote_methods()[name]
        bound = method.signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, *given = bound.arguments.items()  # without self
        values = dict(given)
        announce, number = values.pop("announce", no_announcement), None
        try:
            arguments = method.arguments(**values).model_dump_json()
        except PydanticSerializationError:
            raise Rejected("that is no valid text") from None
        if announce is not no_announcement:
            number = next(self._numbers)
            self._announces[number] = cast("Announce", announce)
        call = _Call(channel=self.name, method=name, arguments=arguments, announce=number).model_dump()
        timeout_s = _TIMEOUTS_S.get(name, ACT_TIMEOUT_S)
        if name in _TOLD:
            if (holder := self._cluster.holder(channel_lease(self.name))) is not None:
                self._cluster.tell(holder.number, _CALL, call, timeout_s=timeout_s)
            return None
        try:
            given_back = await self.call_holder(_CALL, call, timeout_s)
        except CallFailed as failed:
            reason = f"{self.name} is held by another process: {failed.reason}"
            raise (Unreachable(reason) if failed.is_refused else Uncertain(reason)) from failed
        finally:
            if number is not None:
                del self._announces[number]
        answer = _Answer.model_validate(given_back)
        if answer.failure is not None:
            raise answer.failure.to_error()
        if answer.value is None:
            raise Unreachable(f"{self.name} is held by another process: {answer.refused}")
        return method.result.model_validate_json(answer.value).value  # type: ignore[attr-defined] # made above


def build_remote_channel(adapter: Channel, cluster: Cluster, clock: Clock) -> RemoteChannel:
    """Return the channel that stands for one that another process holds.

    `adapter`: of the same settings; it never runs.
    """
    return _build_class(frozenset(one for one in ABILITIES if isinstance(adapter, one)))(adapter, cluster, clock)


@cache
def _build_class(abilities: frozenset[type]) -> type[RemoteChannel]:
    """Return the class with exactly these abilities."""
    members = {name for ability in abilities for name in get_protocol_members(ability)}
    called = members & remote_methods().keys() - QUESTIONS
    return type(
        "RemoteChannelWithAbilities",
        (RemoteChannel,),
        {name: _call_method(name) if name in called else _adapter_property(name) for name in members},
    )


def _adapter_property(name: str) -> property:
    return property(lambda self: getattr(self._adapter, name))


class _Forward(Protocol):
    async def __call__(self, channel: RemoteChannel, /, *args: object, **kwargs: object) -> Any: ...  # noqa: ANN401 - as above


def _call_method(name: str) -> _Forward:
    async def forward(channel: RemoteChannel, /, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as above
        try:
            return await channel._carry_out(name, *args, **kwargs)  # noqa: SLF001 - a method of that class
        except SendError as error:
            if name not in _NEVER_FAIL:
                raise
            logger.info("%s: %s was not carried out: %s", channel.name, name, error.reason)
            return None

    return forward


def serve_channels(cluster: Cluster, channels: Mapping[ChannelName, Channel]) -> None:
    """Carry out what other processes ask of the channels that this one holds at the time. Call it before `start`."""

    async def carry_out(caller: int, arguments: Any) -> Any:  # noqa: ANN401 - JSON
        try:
            call = _Call.model_validate(arguments)
            method = remote_methods().get(call.method)
            given = method.arguments.model_validate_json(call.arguments) if method is not None else None
        except ValidationError:
            raise CallFailed("its version knows other calls", is_refused=True) from None
        answer = await _carry_out_call(cluster, channels, caller, call, given)
        return answer.model_dump(mode="json", exclude_defaults=True)

    async def announce(_caller: int, arguments: Any) -> None:  # noqa: ANN401 - JSON
        announced = _Announcement.model_validate(arguments)
        channel = channels.get(announced.channel)
        if not isinstance(channel, RemoteChannel):
            raise CallFailed("this preview is not wanted any more", is_refused=True)
        await channel.announce(announced.announce, announced.message)

    cluster.serve(_CALL, carry_out)
    cluster.serve(_ANNOUNCE, announce)


async def _carry_out_call(
    cluster: Cluster, channels: Mapping[ChannelName, Channel], caller: int, call: _Call, given: BaseModel | None
) -> _Answer:
    """Carry a call out. `given`: its arguments; None: its method is not known."""
    channel, method = channels.get(call.channel), remote_methods().get(call.method)
    if channel is None or isinstance(channel, RemoteChannel) or not cluster.holds(channel_lease(call.channel)):
        return _Answer(refused=f"process {cluster.number} does not hold it just now")
    if method is None or not isinstance(channel, method.ability):
        return _Answer(refused="it cannot do that")

    async def announce(message: MessageId) -> None:
        announced = {"channel": call.channel, "announce": call.announce, "message": message}
        try:
            await cluster.call(caller, _ANNOUNCE, announced, timeout_s=ASK_TIMEOUT_S)
        except CallFailed as failed:  # nothing was shown
            raise Unreachable(f"the preview could not be recorded: {failed.reason}") from failed

    args, kwargs = list[Any](), dict[str, Any]()
    for name, parameter in list(method.signature.parameters.items())[1:]:
        if name == "announce":
            kwargs |= {} if call.announce is None else {name: announce}
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[name] = getattr(given, name)
        else:
            args.append(getattr(given, name))
    try:
        value = getattr(channel, call.method)(*args, **kwargs)
        value = await value if inspect.isawaitable(value) else value
    except SendError as error:
        return _Answer(failure=_Failure.of(error))
    except Exception:  # a bug in the adapter; to the caller it is not known what was done
        logger.exception("%s: %s broke", channel.name, call.method)
        raise
    return _Answer(value=method.result(value=value).model_dump_json())
