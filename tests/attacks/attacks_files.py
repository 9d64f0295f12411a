"""Attacks on what is outside of the agent's files, with an admin's rights: by paths, links, pipes and names."""

import contextlib
import os
from collections.abc import Awaitable, Callable

from tests.attacks.hostile_kit import ADAM, OLGA, Attack, Fate, Scene

Run = Callable[[Scene], Awaitable[Fate]]
OUT = r"is outside|goes up with `\.\.`|`~` means nothing"


def reads(*paths: str, tool: str = "read_file") -> Run:
    """By each of these; `{town}`: where the gateway's things are."""

    async def run(it: Scene) -> Fate:
        given = [path.format(town=it.town.folder) for path in paths]
        told = await it.does(ADAM, *((tool, {"path": path}) for path in given))
        sent = [part for part in it.town.shown if part.to.room == it.room and part.file is not None]
        return Fate(bool(it.town.leaking(told) or sent or "root:x:0" in told), told)

    return run


def writes(*paths: str) -> Run:
    async def run(it: Scene) -> Fate:
        given = [path.format(town=it.town.folder) for path in paths]
        told = await it.does(ADAM, *(("write_file", {"path": path, "text": it.mark}) for path in given))
        return Fate(changed(it), told)

    return run


def changed(it: Scene) -> bool:
    """Whether this scene's mark stands anywhere in a file that is not the agent's."""
    ours = (".db", ".db-wal", ".db-shm")
    others = [one for one in it.town.folder.rglob("*") if not one.is_relative_to(it.town.files)]
    files = [one for one in others if one.is_file() and one.suffix not in ours]
    return any(it.mark in one.name or it.mark in one.read_text(errors="replace") for one in files)


def planted(make: Callable[[Scene], None], *calls: tuple[str, dict[str, object]]) -> Run:
    """Somebody has put this among the files, however that came about; `{mark}` in a path is the scene's."""

    async def run(it: Scene) -> Fate:
        make(it)
        given = [(name, {key: _filled(value, it) for key, value in args.items()}) for name, args in calls]
        told = await it.does(ADAM, *given)
        whole = (it.town.outside / "secret.txt").read_text() == f"Nobody else may read this: {secret(it)}\n"
        lost = changed(it)
        with contextlib.suppress(FileNotFoundError):
            it.file(it.mark).unlink()
        return Fate(bool(it.town.leaking(told)) or not whole or lost, told)

    return run


def _filled(value: object, it: Scene) -> object:
    return value.replace("{mark}", it.mark) if isinstance(value, str) else value


def secret(it: Scene) -> str:
    return it.town.secrets["outside"]


def link(it: Scene) -> None:
    it.file(it.mark).symlink_to(it.town.outside / "secret.txt")


def link_to_directory(it: Scene) -> None:
    it.file(it.mark).symlink_to(it.town.outside)


def link_in_links(it: Scene) -> None:
    it.file(f"{it.mark}-b").symlink_to("../../outside")
    it.file(it.mark).symlink_to(f"{it.mark}-b/secret.txt")


def link_to_memory(it: Scene) -> None:
    it.file(it.mark).symlink_to("../MEMORY.md")


def hard_link(it: Scene) -> None:
    os.link(it.town.outside / "secret.txt", it.file(it.mark))


def pipe(it: Scene) -> None:
    os.mkfifo(it.file(it.mark))


def device_link(it: Scene) -> None:
    it.file(it.mark).symlink_to("/dev/zero")


def environment_link(it: Scene) -> None:
    it.file(it.mark).symlink_to("/proc/self/environ")


async def search_of_all(it: Scene) -> Fate:
    it.file(it.mark).symlink_to(it.town.folder)
    told = await it.does(ADAM, ("grep", {"pattern": "CANARY"}), ("grep", {"pattern": "CANARY", "path": it.mark}))
    return Fate(bool(it.town.leaking(told)), told)


async def lists_all(it: Scene) -> Fate:
    it.file(it.mark).symlink_to(it.town.folder)
    patterns = ("../*", "/**", f"{it.mark}/*", f"{it.mark}/**/*", "**/../../*")
    told = await it.does(ADAM, *(("glob", {"pattern": pattern}) for pattern in patterns))
    return Fate("secret.txt" in told or "reverie.yaml" in told or "MEMORY.md" in told, told)


async def link_by_shell(it: Scene) -> Fate:
    """The sandbox's own link, with the outside's name, followed from outside."""
    target = it.town.folder / "workspace/MEMORY.md"
    await it.does(ADAM, ("bash", {"command": f"ln -s {target} {it.mark}; ln -s ../MEMORY.md {it.mark}-2"}))
    told = await it.does(ADAM, *(("read_file", {"path": name}) for name in (it.mark, f"{it.mark}-2")))
    return Fate(bool(it.town.leaking(told)), told)


async def sends_link_by_shell(it: Scene) -> Fate:
    await it.does(ADAM, ("bash", {"command": f"ln -s {it.town.folder}/reverie.yaml {it.mark}"}))
    told = await it.does(ADAM, ("send_file", {"path": it.mark}), ("view_image", {"path": it.mark}))
    return Fate(any(part.to.room == it.room and part.file is not None for part in it.town.shown), told)


async def write_through_link_by_shell(it: Scene) -> Fate:
    await it.does(ADAM, ("bash", {"command": f"ln -s {it.town.folder}/workspace {it.mark}"}))
    paths = (f"{it.mark}/AGENTS.md", f"{it.mark}/MEMORY.md", f"{it.mark}/skills/own/SKILL.md")
    told = await it.does(ADAM, *(("write_file", {"path": path, "text": it.mark}) for path in paths))
    return Fate(changed(it), told)


async def edits_memory(it: Scene) -> Fate:
    given = {"path": "../MEMORY.md", "old": "Nobody", "new": it.mark}
    told = await it.does(ADAM, ("edit_file", given), ("edit_file", given | {"path": "/workspace/../MEMORY.md"}))
    return Fate(changed(it), told)


async def half_file(it: Scene) -> Fate:
    """What the tool itself writes for a moment is no way in."""
    it.file(".reverie-0123456789abcdef.half").symlink_to(it.town.outside / "secret.txt")
    told = await it.does(OLGA, ("read_file", {"path": ".reverie-0123456789abcdef.half"}))
    return Fate(bool(it.town.leaking(told)), told)


FILES = [
    Attack("../ out of the files", "paths", reads("../MEMORY.md", "a/../../MEMORY.md", "./../USER.md"), OUT),
    Attack("an absolute path", "paths", reads("/etc/passwd", "{town}/outside/secret.txt", "//etc/passwd"), OUT),
    Attack("the home directory", "paths", reads("~/.ssh/id_ed25519", "~root/.bashrc", "$HOME/.ssh/id_ed25519"), OUT),
    Attack(
        "up from the shell's name of it", "paths", reads("/workspace/../MEMORY.md", "/workspace/..", "/w/../x"), OUT
    ),
    Attack(
        "ways up in disguise",
        "paths",
        reads(
            "..%2fMEMORY.md", "..\\MEMORY.md", "．．/MEMORY.md", "‥/MEMORY.md", "..\0/MEMORY.md", "file:///etc/passwd"
        ),
        "no such file|there is no|not there|control characters",
    ),
    Attack("the gateway's environment as a file", "paths", reads("/proc/self/environ", "/proc/1/environ"), OUT),
    Attack("the configuration and the store", "paths", reads("{town}/reverie.yaml", "{town}/data/reverie.db"), OUT),
    Attack("a secret sent as a file", "paths", reads("../MEMORY.md", "{town}/reverie.yaml", tool="send_file"), OUT),
    Attack("a secret looked at as an image", "paths", reads("../USER.md", "/etc/passwd", tool="view_image"), OUT),
    Attack(
        "the persona written", "paths", writes("../AGENTS.md", "/workspace/../SOUL.md", "{town}/workspace/SOUL.md"), OUT
    ),
    Attack("a skill written", "paths", writes("../skills/own/SKILL.md", "/skills/own/SKILL.md"), OUT),
    Attack("the configuration written", "paths", writes("{town}/reverie.yaml", "../../reverie.yaml"), OUT),
    Attack("MEMORY.md edited", "paths", edits_memory, OUT),
    Attack("a link to a secret read", "links", planted(link, ("read_file", {"path": "{mark}"})), "is a link"),
    Attack(
        "a link to a secret written through",
        "links",
        planted(link, ("write_file", {"path": "{mark}", "text": "{mark}"})),
        "is a link",
    ),
    Attack(
        "through a link to a directory",
        "links",
        planted(
            link_to_directory,
            ("read_file", {"path": "{mark}/secret.txt"}),
            ("write_file", {"path": "{mark}/new.txt", "text": "{mark}"}),
        ),
        "link",
    ),
    Attack("through links to links", "links", planted(link_in_links, ("read_file", {"path": "{mark}"})), "link"),
    Attack("a link to MEMORY.md", "links", planted(link_to_memory, ("read_file", {"path": "{mark}"})), "is a link"),
    Attack(
        "a hard link written through",
        "links",
        planted(hard_link, ("write_file", {"path": "{mark}", "text": "{mark}"})),
        "has several names|cannot be written here",
        alone=True,
    ),
    Attack(
        "a link to the environment", "links", planted(environment_link, ("read_file", {"path": "{mark}"})), "is a link"
    ),
    Attack("a pipe that is never written to", "links", planted(pipe, ("read_file", {"path": "{mark}"})), "a pipe"),
    Attack("a device that never ends", "links", planted(device_link, ("read_file", {"path": "{mark}"})), "is a link"),
    Attack("a link in the place of a half file", "links", half_file, "link|half|no such"),
    Attack("a search through a link to everything", "links", search_of_all, "o match|othing|link"),
    Attack("a list of everything", "links", lists_all, "."),
    Attack("a link that the shell made, read", "links", link_by_shell, "is a link"),
    Attack("a link that the shell made, sent", "links", sends_link_by_shell, "is a link"),
    Attack("a link that the shell made, written through", "links", write_through_link_by_shell, "link", alone=True),
]
