"""Workspace of an agent: the files that say who it is, as the model reads them.

`persona` (what is read, and its text) reads from the disk and composes text, `character_card`
(pure) parses character cards, and `cache` keeps what was read until its files change.

A workspace is one directory. These files are read directly in it: `IDENTITY.md`, `SOUL.md`,
`AGENTS.md`, a character card (`AVATAR.json`, or else `AVATAR.png`), and, only if the agent is alone
with its owner, `USER.md` and `MEMORY.md`. `SOUL.anthropic.md` replaces `SOUL.md` for a model of
that family, and so for other files and families. All may be missing. If the workspace is the one
that comes with the package, an agent's `USER.md` and `MEMORY.md` are in a directory of its own,
beside the store.
"""
