"""Who the agent is: the files of its workspace, as the model reads them.

`bundle` (pure) lays the files out as text, `avatar` and `png` (pure) read a character card, `files` is the
way to the disk, `cache` keeps what was read until `watch` hears of a change.

A workspace is one directory. Read are, directly in it, `IDENTITY.md`, `SOUL.md`, `AGENTS.md`, a character card
(`AVATAR.json`, or else `AVATAR.png`), and, only where the agent is alone with its owner, `USER.md` and `MEMORY.md`.
`SOUL.anthropic.md` stands in for `SOUL.md` where a model of that family is asked. All may be missing.
Where the workspace is the one that comes with the package, an agent's `USER.md` and `MEMORY.md` are in a directory
of its own, beside the store.
"""

from agent.workspace.persona import default_workspace

__all__ = [
    "default_workspace",
]
