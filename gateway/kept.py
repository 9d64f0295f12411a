"""What stands in an agent's own files, ready to be looked through again and again."""

from collections.abc import Awaitable, Callable, Sequence

from agent.journal import JournalEntry
from gateway.hits import ReadHandwritten, note_text
from gateway.relevance import normalize_text


class AgentFileCache:
    """Of all agents. Each is looked at whenever it is asked about, and gone through again only if it has changed."""

    def __init__(self, memory: Callable[[str], Awaitable[str]], by_hand: ReadHandwritten) -> None:
        """`memory`: an agent's MEMORY.md. May raise OSError, as `by_hand`: then nothing is known of that file."""
        self._memory = memory
        self._read_handwritten = by_hand
        self._memory_lines: dict[str, tuple[str, list[tuple[str, str]]]] = {}
        self._journal_entries: dict[str, tuple[Sequence[JournalEntry], list[tuple[JournalEntry, str]]]] = {}

    async def journal_entries(self, agent: str) -> list[tuple[JournalEntry, str]]:
        """What people wrote into its journal, and the same `normalize_text`."""
        try:
            entries = await self._read_handwritten(agent)
        except OSError:  # the operator is told where it is needed
            return []
        if agent not in self._journal_entries or self._journal_entries[agent][0] is not entries:
            self._journal_entries[agent] = entries, [(one, normalize_text(note_text(one))) for one in entries]
        return self._journal_entries[agent][1]

    async def memory_lines(self, agent: str) -> list[tuple[str, str]]:
        """Lines of its MEMORY.md, and the same `normalize_text`."""
        try:
            text = await self._memory(agent)
        except OSError:
            return []
        if agent not in self._memory_lines or self._memory_lines[agent][0] != text:
            self._memory_lines[agent] = text, [(line.strip(), normalize_text(line)) for line in text.splitlines()]
        return self._memory_lines[agent][1]
