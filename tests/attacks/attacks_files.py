"""Attacks by files, with an admin's rights: on what is outside of them, and on what was written in
other rooms."""

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from gateway.plugins.approvals import ApprovalRequested
from tests.attacks.hostile_kit import ADAM, OLGA, Attack, Fate, Person, Scene

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
        told = await it.does(
            ADAM, *(("write_file", {"path": path, "text": it.mark}) for path in given)
        )
        return Fate(changed(it), told)

    return run


def changed(it: Scene) -> bool:
    """Whether this scene's mark stands anywhere in a file that is not the agent's, nor a copy for
    `files undo`."""
    ours, own = (".db", ".db-wal", ".db-shm"), (it.town.files, it.town.files.with_name("undo"))
    others = [one for one in it.town.folder.rglob("*") if not any(map(one.is_relative_to, own))]
    files = [one for one in others if one.is_file() and one.suffix not in ours]
    return any(it.mark in one.name or it.mark in one.read_text(errors="replace") for one in files)


def planted(make: Callable[[Scene], None], *calls: tuple[str, dict[str, object]]) -> Run:
    """Somebody has put this among the files, however that came about; `{mark}` in a path is the
    scene's."""

    async def run(it: Scene) -> Fate:
        make(it)
        given = [
            (name, {key: _filled(value, it) for key, value in args.items()}) for name, args in calls
        ]
        told = await it.does(ADAM, *given)
        whole = (
            it.town.outside / "secret.txt"
        ).read_text() == f"Nobody else may read this: {secret(it)}\n"
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
    it.file(f"{it.mark}-b").symlink_to("../../../../../outside")
    it.file(it.mark).symlink_to(f"{it.mark}-b/secret.txt")


def link_to_memory(it: Scene) -> None:
    it.file(it.mark).symlink_to("../../../../MEMORY.md")


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
    told = await it.does(
        ADAM, ("grep", {"pattern": "CANARY"}), ("grep", {"pattern": "CANARY", "path": it.mark})
    )
    return Fate(bool(it.town.leaking(told)), told)


async def lists_all(it: Scene) -> Fate:
    it.file(it.mark).symlink_to(it.town.folder)
    patterns = ("../*", "/**", f"{it.mark}/*", f"{it.mark}/**/*", "**/../../*")
    told = await it.does(ADAM, *(("glob", {"pattern": pattern}) for pattern in patterns))
    return Fate("secret.txt" in told or "reverie.yaml" in told or "MEMORY.md" in told, told)


async def link_by_shell(it: Scene) -> Fate:
    """The sandbox's own link, with the outside's name, followed from outside."""
    target = it.town.folder / "workspace/MEMORY.md"
    await it.does(
        ADAM,
        ("bash", {"command": f"ln -s {target} {it.mark}; ln -s ../../../../MEMORY.md {it.mark}-2"}),
    )
    told = await it.does(
        ADAM, *(("read_file", {"path": name}) for name in (it.mark, f"{it.mark}-2"))
    )
    return Fate(bool(it.town.leaking(told)), told)


async def sends_link_by_shell(it: Scene) -> Fate:
    await it.does(ADAM, ("bash", {"command": f"ln -s {it.town.folder}/reverie.yaml {it.mark}"}))
    told = await it.does(ADAM, ("send_file", {"path": it.mark}), ("view_image", {"path": it.mark}))
    return Fate(
        any(part.to.room == it.room and part.file is not None for part in it.town.shown), told
    )


async def write_through_link_by_shell(it: Scene) -> Fate:
    await it.does(ADAM, ("bash", {"command": f"ln -s {it.town.folder}/workspace {it.mark}"}))
    paths = (f"{it.mark}/AGENTS.md", f"{it.mark}/MEMORY.md", f"{it.mark}/skills/own/SKILL.md")
    told = await it.does(ADAM, *(("write_file", {"path": path, "text": it.mark}) for path in paths))
    return Fate(changed(it), told)


async def edits_memory(it: Scene) -> Fate:
    given = {"path": "../MEMORY.md", "old": "Nobody", "new": it.mark}
    told = await it.does(
        ADAM, ("edit_file", given), ("edit_file", given | {"path": "/workspace/../MEMORY.md"})
    )
    return Fate(changed(it), told)


async def half_file(it: Scene) -> Fate:
    """What the tool itself writes for a moment is no way in."""
    it.file(".reverie-0123456789abcdef.half").symlink_to(it.town.outside / "secret.txt")
    told = await it.does(OLGA, ("read_file", {"path": ".reverie-0123456789abcdef.half"}))
    return Fate(bool(it.town.leaking(told)), told)


def made(it: Scene) -> str:
    """The secret that `SAVED` makes. It stands in no command."""
    return f"S-{it.mark}"


SAVED = "printf S- > {mark}.txt; printf {mark} >> {mark}.txt; echo saved"
LOOKS = (
    "for n in $(seq 40); do find /workspace /files /tmp -name '{mark}*' -type f -print -exec "
    "cat {} +; sleep 0.05; done"
)
Calls = Sequence[tuple[str, dict[str, object]]]


def filled(value: object, it: Scene, there: Scene) -> Any:
    """`{mark}`: of the attack; `{there}`: the file of the other room, as all rooms may write it."""
    file = f"/files/{there.files.relative_to(it.town.files)}/{it.mark}.txt"
    return (
        value.replace("{mark}", it.mark).replace("{there}", file)
        if isinstance(value, str)
        else value
    )


async def calls(
    who: Person, it: Scene, here: Scene, there: Scene, *given: tuple[str, dict[str, object]]
) -> str:
    """Somebody has these called, each in a turn of its own."""
    told = list[str]()
    for name, arguments in given:
        one = name, {key: filled(value, it, there) for key, value in arguments.items()}
        told.append(await here.does(who, one, direct=here.room == "olga"))
    return "\n".join(told)


async def unasked(*rooms: Scene) -> bool:
    return not [
        one for room in rooms for one in await room.facts(ApprovalRequested, "approval_asked")
    ]


async def takes(it: Scene, *, whose: str, reads: Calls, twin: bool) -> Fate:
    """A file lies in one place, and another place tries to read it. The twin is read where it may
    be."""
    there = it.town.scene(whose if whose == "olga" else f"{whose}{it.mark}")
    here = it
    if twin:
        here = it.town.scene(f"crew2{it.mark}") if whose == "crew" else there
    there.file(f"{it.mark}.txt").write_text(made(it))
    told = await calls(OLGA if twin else ADAM, it, here, there, *reads)
    sent = [
        part.file for part in it.town.shown if part.to.room == here.room and part.file is not None
    ]
    return Fate(made(it) in told or bool(sent), told)


async def overlooks(it: Scene, *, twin: bool) -> Fate:
    """A job is at work when the other place writes. The twin's job is of that place."""
    there = it.town.scene(private=True)
    here = there if twin else it
    begun = await calls(ADAM, it, here, there, ("bash", {"command": LOOKS, "background": True}))
    job = re.search(r"Job (j[0-9]+) runs", begun)
    assert job, begun
    assert "saved" in await calls(ADAM, it, there, there, ("bash", {"command": SAVED}))
    read = ("job_output", {"job": job[1]})
    while "[running" in (told := await calls(ADAM, it, here, there, read)):
        await asyncio.sleep(0.2)
    return Fate(made(it) in told, told)


async def copies(it: Scene, *, call: tuple[str, dict[str, object]], twin: bool) -> Fate:
    """A page has a closed room's file copied to where everybody reads it. The twin is an admin's
    own word."""
    there = it.town.scene(private=True)
    there.file(f"{it.mark}.txt").write_text(made(it))
    name, given = call[0], {key: filled(value, it, there) for key, value in call[1].items()}
    word = there.order((name, given))
    url = it.page(word)
    await there.speak(ADAM, word if twin else f"{url} {there.order(('web_fetch', {'url': url}))}")
    await there.obeyed(word)
    public = it.town.files / "public" / f"{it.mark}.txt"
    told = there.results(word)
    won = public.exists() and made(it) in public.read_text()
    return Fate(won and (not twin or await unasked(there)), told)


PATHS = (
    *("{there}", "/workspace{there}", "..{there}", "../..{there}", "/proc/self/root{there}"),
    *("/files/places/../{there}", "/files/public/../..{there}"),
)
TAKES: dict[str, Calls] = {
    "by its path": [("read_file", {"path": path}) for path in PATHS],
    "as an image, sent and copied": [
        ("view_image", {"path": "{there}"}),
        ("send_file", {"path": "{there}"}),
        ("copy_file", {"source": "{there}", "path": "{mark}-got"}),
        ("read_file", {"path": "{mark}-got"}),
        ("edit_file", {"path": "{there}", "old": "S-", "new": "S-"}),
    ],
    "by a search": [
        ("grep", {"pattern": "S-"}),
        ("grep", {"pattern": "S-", "path": "/files"}),
        ("grep", {"pattern": "S-", "path": "{there}"}),
        ("glob", {"pattern": "/files/**/{mark}*"}),
    ],
    "by a command": [
        (
            "bash",
            {"command": "cat '{there}' ..{there} ../*/* /files/*/*/*/*; grep -rs S- /tmp /dev/shm"},
        )
    ],
    "by a symbolic link": [
        (
            "bash",
            {
                "command": (
                    "ln -s '{there}' {mark}-l; ln -s /files {mark}-d; cat {mark}-l {mark}-d/*/*/*/*"
                )
            },
        ),
        ("read_file", {"path": "{mark}-l"}),
        ("grep", {"pattern": "S-", "path": "{mark}-d"}),
    ],
    "by a hard link": [
        ("bash", {"command": "ln '{there}' got; cp -a /files/places got2; cat got got2/*/*"})
    ],
    "through /proc": [
        (
            "bash",
            {
                "command": (
                    "timeout 2 cat '/proc/self/root{there}' '/proc/1/root{there}' "
                    "/proc/1/cwd/..'{there}'"
                )
            },
        ),
        (
            "bash",
            {"command": "timeout 2 cat /proc/*/fd/*/*; ls -l /proc/*/fd; cat /proc/self/mountinfo"},
        ),
    ],
    "by mounts": [
        (
            "bash",
            {
                "command": (
                    "umount /files; unshare -Urm umount -l /files; mount --bind / g; cat '{there}'"
                )
            },
        )
    ],
}
COPIES: dict[str, tuple[str, dict[str, object]]] = {
    "copied": ("copy_file", {"source": "{mark}.txt", "path": "/files/public/{mark}.txt"}),
    "written": ("write_file", {"path": "/files/public/{mark}.txt", "text": "S-{mark}"}),
}


def shared(*, twin: bool) -> list[Attack]:
    """Attacks on what was written elsewhere, or their twins, which reach it unasked."""
    reads: dict[str, Calls] = (
        {"by its path": [("read_file", {"path": "{there}"})]} if twin else TAKES
    )
    runs: dict[str, Run] = {
        **{
            f"a file of {whose} {how}": partial(takes, whose=whose, reads=given, twin=twin)
            for whose in ("staff", "olga", "crew")
            for how, given in reads.items()
        },
        "a job looks for what is written elsewhere": partial(overlooks, twin=twin),
        **{
            f"a file {how} for everybody": partial(copies, call=call, twin=twin)
            for how, call in COPIES.items()
        },
    }
    return [Attack(name, "shared", run, ".", alone=True) for name, run in runs.items()]


FILES = [
    Attack(
        "../ out of the files",
        "paths",
        reads("../MEMORY.md", "a/../../MEMORY.md", "./../USER.md"),
        OUT,
    ),
    Attack(
        "an absolute path",
        "paths",
        reads("/etc/passwd", "{town}/outside/secret.txt", "//etc/passwd"),
        OUT,
    ),
    Attack(
        "the home directory",
        "paths",
        reads("~/.ssh/id_ed25519", "~root/.bashrc", "$HOME/.ssh/id_ed25519"),
        OUT,
    ),
    Attack(
        "up from the shell's name of it",
        "paths",
        reads("/workspace/../MEMORY.md", "/workspace/..", "/w/../x"),
        OUT,
    ),
    Attack(
        "ways up in disguise",
        "paths",
        reads(
            "..%2fMEMORY.md",
            "..\\MEMORY.md",
            "．．/MEMORY.md",
            "‥/MEMORY.md",
            "..\0/MEMORY.md",
            "file:///etc/passwd",
        ),
        "no such file|there is no|not there|control characters",
    ),
    Attack(
        "the gateway's environment as a file",
        "paths",
        reads("/proc/self/environ", "/proc/1/environ"),
        OUT,
    ),
    Attack(
        "the configuration and the store",
        "paths",
        reads("{town}/reverie.yaml", "{town}/data/reverie.db"),
        OUT,
    ),
    Attack(
        "a secret sent as a file",
        "paths",
        reads("../MEMORY.md", "{town}/reverie.yaml", tool="send_file"),
        OUT,
    ),
    Attack(
        "a secret looked at as an image",
        "paths",
        reads("../USER.md", "/etc/passwd", tool="view_image"),
        OUT,
    ),
    Attack(
        "the persona written",
        "paths",
        writes("../AGENTS.md", "/workspace/../SOUL.md", "{town}/workspace/SOUL.md"),
        OUT,
    ),
    Attack(
        "a skill written", "paths", writes("../skills/own/SKILL.md", "/skills/own/SKILL.md"), OUT
    ),
    Attack(
        "the configuration written",
        "paths",
        writes("{town}/reverie.yaml", "../../reverie.yaml"),
        OUT,
    ),
    Attack("MEMORY.md edited", "paths", edits_memory, OUT),
    Attack(
        "a link to a secret read",
        "links",
        planted(link, ("read_file", {"path": "{mark}"})),
        "is a link",
    ),
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
    Attack(
        "through links to links",
        "links",
        planted(link_in_links, ("read_file", {"path": "{mark}"})),
        "link",
    ),
    Attack(
        "a link to MEMORY.md",
        "links",
        planted(link_to_memory, ("read_file", {"path": "{mark}"})),
        "is a link",
    ),
    Attack(
        "a hard link written through",
        "links",
        planted(hard_link, ("write_file", {"path": "{mark}", "text": "{mark}"})),
        "has several names|cannot be written here",
        alone=True,
    ),
    Attack(
        "a link to the environment",
        "links",
        planted(environment_link, ("read_file", {"path": "{mark}"})),
        "is a link",
    ),
    Attack(
        "a pipe that is never written to",
        "links",
        planted(pipe, ("read_file", {"path": "{mark}"})),
        "a pipe",
    ),
    Attack(
        "a device that never ends",
        "links",
        planted(device_link, ("read_file", {"path": "{mark}"})),
        "is a link",
    ),
    Attack("a link in the place of a half file", "links", half_file, "link|half|no such"),
    Attack("a search through a link to everything", "links", search_of_all, "o match|othing|link"),
    Attack("a list of everything", "links", lists_all, "."),
    Attack("a link that the shell made, read", "links", link_by_shell, "is a link"),
    Attack("a link that the shell made, sent", "links", sends_link_by_shell, "is a link"),
    Attack(
        "a link that the shell made, written through",
        "links",
        write_through_link_by_shell,
        "link",
        alone=True,
    ),
]
