"""What the operator has the gateway do, and what came of it, told in the panes. So is what it refuses."""

from gateway.console.api import Api, ApiError
from gateway.console.entry import MAX_SAID
from gateway.console.going import Call, Turn
from gateway.console.model import EVERY, OWN, Console
from gateway.console.text import one_line


class Desk:
    """One operator's."""

    def __init__(self, api: Api, model: Console, by: str) -> None:
        """`by`: who that is, for people."""
        self._api, self._model, self._by = api, model, by
        self._there = False
        self._early: list[str] = []

    async def begin(self) -> None:
        """The gateway is there, for the first time: it is told what was typed before."""
        self._there = True
        while self._early:
            await self.say(self._early.pop(0))

    async def say(self, said: str) -> bool:
        """In the operator's own conversation. False: it was not taken, and the pane says why."""
        self._model.talk.end()
        if len(said) > MAX_SAID:
            self._model.remark(f"that has {len(said)} characters, and {MAX_SAID} can be said at once", bad=True)
            return False
        if not self._there:
            self._early.append(said)
            self._model.remark(f"is said when the gateway is there: {one_line(said)}")
            return True
        try:
            await self._api.say(said)
        except ApiError as error:
            self._model.remark(f"not said: {error}", bad=True)
            return False
        return True

    async def kill(self, call: Call) -> None:
        """End a tool; its turn goes on."""
        await self._order("kill", call.conversation, f"killing {call.name} in {self._model.title(call.conversation)}")

    async def stop(self, turn: Turn) -> None:
        """Interrupt a turn."""
        await self._order("stop", turn.conversation, f"stopping the turn in {self._model.title(turn.conversation)}")

    async def follow(self, wanted: str) -> None:
        """Show another conversation: `own`, `all`, its title or its address."""
        conversation = {"": OWN, "own": OWN, "all": EVERY}.get(wanted) or self._model.meant(wanted)
        try:
            past = None if conversation == EVERY else await self._api.past(conversation)
            if past is None:
                self._model.places = (await self._api.places()).conversations
                self._model.learn(self._model.places)
        except ApiError as error:
            self._model.remark(f"cannot follow {wanted}: {error}", bad=True)
            return
        self._model.follow(conversation, past)
        if past is None:
            for place in reversed(self._model.places):
                self._model.summarize(place)
        elif not past.messages:
            self._model.remark("nothing was said here yet")

    async def poll(self, *, places: bool) -> None:
        """Have the sums, and perhaps which conversations there are. What fails is told by the connection."""
        try:
            self._model.took(await self._api.status())
            if places:
                self._model.places = (await self._api.places()).conversations
                self._model.learn(self._model.places)
        except ApiError:
            pass

    async def _order(self, kind: str, conversation: str, what: str) -> None:
        self._model.remark(what)
        try:
            answered = await self._api.order(kind, conversation, self._by)
        except ApiError as error:
            self._model.remark(f"not done: {error}", bad=True)
            return
        for line in answered.lines:
            self._model.remark(line, bad=not answered.ok)
