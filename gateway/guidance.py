"""What holds for one turn only, in the operator's weight: how the agent is to go about it, and who was away."""

from collections.abc import Awaitable, Callable

from agent.prompts import load_prompt
from agent.signals import DmnMode, DmnState
from gateway.acting import MessagingTools
from gateway.digest import format_reachable_places
from gateway.events import ConversationId
from gateway.records import is_inner
from gateway.titles import PlaceTitles


class TurnDirectives:
    """One agent's."""

    def __init__(
        self,
        *,
        state: Callable[[], DmnState],
        acting: MessagingTools,
        returned: Callable[[ConversationId], Awaitable[str]],
        titles: PlaceTitles,
    ) -> None:
        """`returned`: what somebody is to be told who was away until now, in numbers; empty: nothing."""
        self._state = state
        self._platform_actions = acting
        self._titles = titles
        self._away_note = returned

    async def reachable_places(self, conversation: ConversationId) -> str:
        """Where an inner turn may write to; empty elsewhere. Other people's words are in it."""
        if not is_inner(conversation):
            return ""
        places, titles = self._platform_actions.list_places(), self._titles
        await titles.load([at.conversation for at in places])
        return format_reachable_places(places, titles)

    async def __call__(self, conversation: ConversationId, autonomous: bool, continuing: bool) -> str:
        """For `agent.brief.PromptInput.now`. It has the operator's weight, so nobody's words are in it."""
        state = self._state()
        if not autonomous:
            still = [load_prompt(state.mode.value)] if state.mode in (DmnMode.PAUSED, DmnMode.OFF) else []
            return "\n".join([*still, *filter(None, [await self._away_note(conversation)])])
        quiet = [load_prompt("quiet")] if state.quiet_until is not None else []
        if is_inner(conversation):
            mode = DmnMode.WORKING if continuing else DmnMode.STORED if state.woken else state.mode
            return "\n".join([load_prompt(mode.value), *quiet])
        return "\n".join([load_prompt("working" if continuing else "own"), *quiet])
