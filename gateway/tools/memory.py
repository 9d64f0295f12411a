"""Tools of an agent's memory: journal and notes."""

from typing import Annotated, Final

from pydantic import Field

from agent.journal import MAX_TEXT_CHARS, MAX_TITLE_CHARS
from gateway.context.journal import JournalStore, NoteForgetter
from gateway.core.permissions import OUT, OWN
from gateway.core.tool import ToolContext, ToolOutput, tool

MAX_QUERY_CHARS: Final = 200


class MemoryTools:
    """Tools for the journal and notes, for all agents. Handlers raise StoreError,
    too.
    """

    def __init__(
        self,
        journal: JournalStore,
        forgetter: NoteForgetter,
    ) -> None:
        self._journal = journal
        self._forgetter = forgetter

    @tool(
        "Write into your journal: what happened, what you found out, what you plan. It is not "
        "posted, and what is private stays private.",
        effect=OWN,
        ephemeral=True,
    )
    async def journal(
        self,
        context: ToolContext,
        *,
        title: Annotated[str, Field(max_length=MAX_TITLE_CHARS, description="One line.")],
        text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)],
    ) -> str:
        return await self._journal.write_entry(context, title, text)

    @tool(
        "Keep a fact for good, such as a name or a preference. It is not posted, and what is "
        "private stays private.",
        effect=OWN,
    )
    async def remember(
        self,
        context: ToolContext,
        *,
        text: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_TEXT_CHARS,
                description="One fact, clear without this conversation: who, what, since when.",
            ),
        ],
    ) -> str:
        return await self._journal.remember(context, text)

    @tool(
        "Delete notes that you made with remember or journal. Messages stay.",
        effect=OUT,
    )
    async def forget(
        self,
        context: ToolContext,
        *,
        what: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_QUERY_CHARS,
                description="Words of the note, or its handle, e.g. n12.",
            ),
        ],
    ) -> str | ToolOutput:
        return await self._forgetter.forget(what, context)
