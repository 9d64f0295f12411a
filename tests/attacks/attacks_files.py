"""Attacks by files, with an admin's rights: on what is outside of them, and on what was written in other rooms."""

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.core.facts import ApprovalRequested
from tests.attacks.hostile_kit import ADAM, OLGA, Attack, Fate, Scene
from tests.kits.waiting import until

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


def made(it: Scene) -> str:
    """The secret that `CLOSED` makes. It stands in no command."""
    return f"S-{it.mark}"


CLOSED = "mkdir -p MARK; printf S- > MARK/x; printf MARK >> MARK/x; echo >> MARK/x; "
LOOKS = (
    "touch MARK-up; for n in $(seq 50); do cat MARK/x MARK/y 2>/dev/null; timeout 0.1 cat <&3; "
    "grep -rs S- MARK && break; sleep 0.05; done; touch MARK-done"
)


async def calls(it: Scene, here: Scene, *given: tuple[str, dict[str, object]]) -> str:
    """An admin has these called in that room; `MARK` in them is the attack's."""
    filled = [
        (name, {key: one.replace("MARK", it.mark) if isinstance(one, str) else one for key, one in arguments.items()})
        for name, arguments in given
    ]
    return await here.does(ADAM, *filled)


async def unasked(*rooms: Scene) -> bool:
    return not [one for room in rooms for one in await room.facts(ApprovalRequested, "approval_asked")]


async def takes(it: Scene, *, before: str, reads: str, twin: bool) -> Fate:
    """A closed room has its command make a file, and another room tries to read it. The twin is the closed room's."""
    there = it.town.scene(private=True)
    await calls(it, there, ("bash", {"command": CLOSED + before}))
    told = await calls(it, there if twin else it, ("bash", {"command": f"{reads}; echo read"}))
    assert "read" in told, told
    return Fate(made(it) in told and (not twin or await unasked(there)), told)


async def overlooks(it: Scene, *, opens: str, writes: tuple[str, dict[str, object]], twin: bool) -> Fate:
    """A job is already at work when the closed room writes. The twin's job is that room's own."""
    there = it.town.scene(private=True)
    here = there if twin else it
    it.file(it.mark).mkdir()
    it.file(f"{it.mark}/open").touch()
    os.mkfifo(it.file(f"{it.mark}/pipe"))
    if "x" in str(writes[1].get("path", "mv" in str(writes) and "x")):
        await calls(it, there, ("write_file", {"path": "MARK/x", "text": "old MARK\n"}))
    begin = ("bash", {"command": f"exec 3{opens}; {LOOKS}", "background": True})
    while "may not run beside it" in (begun := await calls(it, here, begin)):
        await asyncio.sleep(0.1)  # the one of the attack before
    job = re.search(r"Job (j[0-9]+) runs", begun)
    assert job, begun
    await until(it.file(f"{it.mark}-up").exists, limit_s=60)
    written = await calls(it, there, writes)
    await until(it.file(f"{it.mark}-done").exists, limit_s=60)
    told = await calls(it, here, ("jobs", {}), ("job_output", {"job": job[1]}))
    said = "\n".join([told, *here.posts])
    return Fate(made(it) in said and (not twin or await unasked(there)), f"{written}\n{told}")


TAKES = {
    "by their names": ("", "cat MARK/x; cat MARK/*; cat < MARK/x; head -c 99 */x"),
    "by a search": ("", "grep -rs S- .; find . -newer /etc/passwd -type f -exec cat {} +; find MARK | xargs cat"),
    "by an archive": ("touch MARK/.keep; ", "tar cf - . | tr -d '\\0'; cp -a MARK got; cat got/*"),
    "by a symbolic link": (
        "ln -s MARK/x MARK-l; ln -s /workspace/MARK MARK-d; ",
        "cat MARK-l MARK-d/x; cat $PWD/MARK-d/*",
    ),
    "by a hard link": ("ln MARK/x MARK-h; ln MARK/x .MARK-h; ", "cat MARK-h .MARK-h; ln MARK-h got; cat got"),
    "by the name of a half file": (
        "cp MARK/x .reverie-0123456789abcdef.half; ",
        "cat .reverie-*.half; for one in .* *; do cat $one; done",
    ),
    "in a repository": (
        "mkdir -p MARK/.git/a; mv MARK/x MARK/.git/a/x; ",
        "cat MARK/.git/a/x; find / -name x -exec cat {} +",
    ),
    "through /proc": ("", "cat /proc/self/root/workspace/MARK/x /proc/self/cwd/MARK/x /proc/1/cwd/workspace/MARK/x"),
    "renamed": ("touch MARK/y; ", "mv MARK/x got; mv MARK MARK-2; cat got MARK/x MARK-2/x; rm MARK*/x; cat MARK*/x"),
    "unmounted": ("touch MARK/y; ", "umount MARK/x MARK; umount -l MARK/x; unshare -Urm umount MARK/x; cat MARK/x"),
    "bound": ("", "mkdir got; mount --bind . got; unshare -Urm mount --rbind . got; cat got/MARK/x MARK/x"),
    "after a change of its times": ("touch -d 1990-01-01 MARK/x; chmod 777 MARK/x; ", "touch MARK/x; cat MARK/x"),
}
OVERLOOKS: dict[str, tuple[str, tuple[str, dict[str, object]]]] = {
    "a hidden file that is replaced": (
        "< MARK/open",
        ("edit_file", {"path": "MARK/x", "old": "old ", "new": "S-"}),
    ),
    "a hidden file that is moved over": (
        "< MARK/open",
        ("bash", {"command": "printf S- > n; printf MARK >> n; mv n MARK/x"}),
    ),
    "a new file": ("< MARK/open", ("bash", {"command": "printf S- > n; printf MARK >> n; cp n MARK/y; rm n"})),
    "a file that a tool writes": ("< MARK/open", ("write_file", {"path": "MARK/y", "text": "S-MARK"})),
    "a file that it holds open": (
        "< MARK/open",
        ("bash", {"command": "printf S- >> MARK/open; echo MARK >> MARK/open"}),
    ),
    "a pipe": ("<> MARK/pipe", ("bash", {"command": "timeout 2 bash -c 'printf S-; echo MARK' > MARK/pipe"})),
}


def shared(*, twin: bool) -> list[Attack]:
    """Attacks on what was written elsewhere, or their twins, which reach it unasked. Each alone: commands wait."""
    runs: dict[str, Run] = {
        **{
            f"a closed room's file {how}": partial(takes, before=before, reads=reads, twin=twin)
            for how, (before, reads) in TAKES.items()
        },
        **{
            f"a job looks at {what}": partial(overlooks, opens=opens, writes=writes, twin=twin)
            for what, (opens, writes) in OVERLOOKS.items()
        },
    }
    return [Attack(name, "shared", run, ".", alone=True) for name, run in runs.items()]


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
