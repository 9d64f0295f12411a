"""What the operator has the gateway do, and what came of it, told in the panes. So is what it refuses."""

from gateway.console.api import ConsoleApiError, GatewayApiClient
from gateway.console.entry import MAX_MESSAGE_CHARS
from gateway.console.going import ConsoleActiveCall, ConsoleActiveTurn
from gateway.console.model import ALL_CONVERSATIONS, OPERATOR_CONVERSATION, ConsoleModel
from gateway.console.text import one_line


class ConsoleActions:
    """One operator's."""

    def __init__(self, api: GatewayApiClient, model: ConsoleModel, by: str) -> None:
        """`by`: who that is, for people."""
        self._api, self._model, self._by = api, model, by
        self._is_connected = False
        self._queued: list[str] = []

    async def send_queued(self) -> None:
        """The gateway is there, for the first time: it is told what was typed before."""
        self._is_connected = True
        while self._queued:
            await self.say(self._queued.pop(0))

    async def say(self, said: str) -> bool:
        """In the operator's own conversation. False: it was not taken, and the pane says why."""
        self._model.conversation_pane.scroll_to_end()
        if len(said) > MAX_MESSAGE_CHARS:
            self._model.add_remark(
                f"that has {len(said)} characters, and {MAX_MESSAGE_CHARS} can be said at once", bad=True
            )
            return False
        if not self._is_connected:
            self._queued.append(said)
            self._model.add_remark(f"is said when the gateway is there: {one_line(said)}")
            return True
        try:
            await self._api.say(said)
        except ConsoleApiError as error:
            self._model.add_remark(f"not said: {error}", bad=True)
            return False
        return True

    async def kill(self, call: ConsoleActiveCall) -> None:
        """End a tool; its turn goes on."""
        await self._send_order(
            "kill", call.conversation, f"killing {call.name} in {self._model.title(call.conversation)}"
        )

    async def stop(self, turn: ConsoleActiveTurn) -> None:
        """Interrupt a turn."""
        await self._send_order(
            "stop", turn.conversation, f"stopping the turn in {self._model.title(turn.conversation)}"
        )

    async def follow(self, wanted: str) -> None:
        """Show another conversation: `own`, `all`, its title or its address."""
        conversation = {"": OPERATOR_CONVERSATION, "own": OPERATOR_CONVERSATION, "all": ALL_CONVERSATIONS}.get(
            wanted
        ) or self._model.find_conversation(wanted)
        try:
            past = None if conversation == ALL_CONVERSATIONS else await self._api.get_history(conversation)
            if past is None:
                self._model.conversations = (await self._api.list_conversations()).conversations
                self._model.learn_titles(self._model.conversations)
        except ConsoleApiError as error:
            self._model.add_remark(f"cannot follow {wanted}: {error}", bad=True)
            return
        self._model.follow(conversation, past)
        if past is None:
            for place in reversed(self._model.conversations):
                self._model.add_summary(place)
        elif not past.messages:
            self._model.add_remark("nothing was said here yet")

    async def refresh_model(self, *, places: bool) -> None:
        """Have the sums, and perhaps which conversations there are. What fails is told by the connection."""
        try:
            self._model.update_status(await self._api.get_status())
            if places:
                self._model.conversations = (await self._api.list_conversations()).conversations
                self._model.learn_titles(self._model.conversations)
        except ConsoleApiError:
            pass

    async def _send_order(self, kind: str, conversation: str, what: str) -> None:
        self._model.add_remark(what)
        try:
            answered = await self._api.send_order(kind, conversation, self._by)
        except ConsoleApiError as error:
            self._model.add_remark(f"not done: {error}", bad=True)
            return
        for line in answered.lines:
            self._model.add_remark(line, bad=not answered.ok)
