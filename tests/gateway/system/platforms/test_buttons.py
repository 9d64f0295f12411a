"""The whole gateway on Telegram and Discord: approvals and requests of strangers are decided by one
tap.

A tap is a command of whoever tapped, in the place of the tap. Its data proves nothing: a client of
one's own sends any text with it. So each test that forges data expects what the same person would
get for writing that command there.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.core.clock import SystemClock
from gateway.core.events import DeliveryReport
from gateway.core.facts import AuditRecord, RoleAssigned
from gateway.plugins.approvals import ApprovalEnded
from reverie.testing.servers.discord_api_rest import LOADING
from reverie.testing.servers.discord_api_world import EPHEMERAL
from reverie.testing.servers.model_api import Answer, Json
from tests.gateway.system.platforms import discord_kit, telegram_kit

ARGUMENTS = json.dumps({"path": "made.txt", "text": "by approval"})


class OnTelegram:
    def __init__(self, it: telegram_kit.Town) -> None:
        self.it, self.until = it, it.api.until
        self.people = {"owner": it.api.person("Olga"), "guest": it.api.person("Gus")}
        self.room, self.other = it.api.group("lounge"), it.api.group("other")
        self.owner_name = "Olga"
        self.owner = f"{telegram_kit.NAME}:{self.people['owner'].id}"
        """As `access.roles` has it."""
        it.api.group_says(self.other, self.people["guest"], "hi")

    async def ready(self) -> None:
        """Return once what is said arrives."""

    def mentions(self, text: str) -> None:
        """The owner says that to the bot in the room."""
        self.it.api.mentions(self.room, self.people["owner"], text)

    def commands(self, text: str) -> None:
        """The owner writes a command in the room."""
        self.it.api.commands(self.room, self.people["owner"], f"/{text}")

    def alone(self, who: str, text: str) -> Any:
        """They write that to the bot alone; where that is."""
        self.it.api.private_says(self.people[who], text)
        return self.people[who]

    def notices(self, where: Any = None) -> list[tuple[str, str, list[str]]]:
        """Id, text and commands of the buttons of each message of the bot there; None: in the
        room."""
        return [
            (str(one.id), one.text, one.taps)
            for one in self.it.api.shown(where or self.room)
            if one.by_bot
        ]

    def tap(
        self, who: str, message: str, data: str, *, forged: bool = False, where: Any = None
    ) -> Any:
        return self.it.api.presses(
            where or self.room, self.people[who], int(message), data, forged=forged
        )

    def answer(self, tap: Any) -> str:
        """What was shown to who tapped; empty: nothing yet."""
        return str((self.it.api.world.callbacks[tap] or {}).get("text", ""))


class OnDiscord:
    def __init__(self, it: discord_kit.Town) -> None:
        self.it, self.until = it, it.api.until
        self.people = {"owner": it.api.ann, "guest": it.api.ben}
        self.owner_name = "ann"
        self.owner = f"{discord_kit.NAME}:{it.api.ann}"
        self.said = it.api.says(it.api.other, it.api.ben, "hi")

    async def ready(self) -> None:
        await self.it.api.connected()

    def mentions(self, text: str) -> None:
        self.it.api.says(self.it.api.room, self.it.api.ann, f"<@{self.it.api.bot}> {text}")

    def commands(self, text: str) -> None:
        self.it.api.says(self.it.api.room, self.it.api.ann, f"!{text}")

    def alone(self, who: str, text: str) -> Any:
        where = self.it.api.world.dm(self.people[who])
        self.it.api.says(where, self.people[who], text)
        return where

    def notices(self, where: Any = None) -> list[tuple[str, str, list[str]]]:
        return [
            (
                one["id"],
                one["content"],
                [made["custom_id"] for row in one["components"] for made in row["components"]],
            )
            for one in self.it.api.world.messages[where or self.it.api.room].values()
            if one["author"]["id"] == self.it.api.bot and not one["flags"] & EPHEMERAL
        ]

    def tap(
        self, who: str, message: str, data: str, *, forged: bool = False, where: Any = None
    ) -> Any:
        return self.it.api.commands.press(
            where or self.it.api.room, self.people[who], message, data, forged=forged
        )

    def answer(self, tap: Any) -> str:
        shown = self.it.api.world.messages[tap.channel]
        if not tap.messages or shown[tap.messages[0]]["flags"] & LOADING:
            return ""
        assert tap.ephemeral
        return str(shown[tap.messages[0]]["content"])


Stage = OnTelegram | OnDiscord
both = pytest.mark.parametrize("platform", ["telegram", "discord"])


@asynccontextmanager
async def stage(
    platform: str, folder: Path, arguments: str = ARGUMENTS, span: str = "2m"
) -> AsyncIterator[Stage]:
    """A model that makes a file once it is asked for one, which an admin has to approve within
    `span`."""
    async with AsyncExitStack() as stack:
        made: Stage
        if platform == "telegram":
            made = OnTelegram(await stack.enter_async_context(telegram_kit.town(folder)))
        else:
            town = await stack.enter_async_context(discord_kit.town(folder))
            town.clock = SystemClock  # type: ignore[method-assign] # a hurried one makes taps of a busy machine late
            made = OnDiscord(town)

        def answer(body: Json) -> Answer:
            if any(one["role"] == "tool" for one in body["messages"]):
                return Answer(text="So be it.")
            return Answer(calls=(("c1", "write_file", arguments),))

        made.it.model.default = answer
        made.it.config["access"]["roles"] = {"owner": [made.owner]}
        rules = [{"tool": "write_file", "approval": "always"}]
        made.it.config["llm"]["models"]["main"]["context_tokens"] = 100_000
        made.it.config["tools"] = {"rules": rules, "approvals": {"timeout": span}}
        made.it.write()
        yield made


async def notice(made: Stage, where: Any = None) -> tuple[str, str, list[str]]:
    """The newest message with buttons, once there is one."""
    await made.until(lambda: any(taps for _, _, taps in made.notices(where)))
    return [one for one in made.notices(where) if one[2]][-1]


async def answered(made: Stage, tap: Any) -> str:
    """What was shown to who tapped, without its marks."""
    await made.until(lambda: bool(made.answer(tap)))
    return made.answer(tap).replace("`", "")


async def closed(made: Stage, number: str, where: Any = None) -> str:
    """The last line of the notice, once its buttons are gone."""
    await made.until(
        lambda: any(one == number and not taps for one, _, taps in made.notices(where))
    )
    (text,) = [text for one, text, _ in made.notices(where) if one == number]
    return text.rsplit("\n", 1)[-1].replace("*", "").replace("`", "")


def results(made: Stage) -> list[str]:
    return [
        one["content"] for one in made.it.model.seen[-1].body["messages"] if one["role"] == "tool"
    ]


def files(folder: Path) -> int:
    return len(list(folder.rglob("made.txt")))


@both
async def test_a_tap_approves_and_the_tool_runs_once(platform: str, tmp_path: Path) -> None:
    async with stage(platform, tmp_path) as made:
        async with made.it.inside():
            await made.ready()
            made.mentions("make it")
            number, text, taps = await notice(made)
            name = taps[0].removeprefix("approve ")
            assert taps == [f"approve {name}", f"deny {name}"]
            assert "write_file" in text
            assert ARGUMENTS in text.replace("`", "")
            assert made.owner_name in text
            assert " UTC (in 2 min)" in text
            first, second = made.tap("owner", number, taps[0]), made.tap("owner", number, taps[0])
            answers = [await answered(made, tap) for tap in (first, second)]
            assert answers[0] == "Approved: I run this call of write_file."
            assert answers[1] == f"Too late: {made.owner_name} approved {name}."
            assert await closed(made, number) == f"Approved by {made.owner_name}."
            await made.until(lambda: any("So be it." in text for _, text, _ in made.notices()))
        assert len(results(made)) == 1
        assert files(tmp_path) == 1
        (ended,) = await made.it.facts(ApprovalEnded)
        assert (ended.verdict, ended.by) == ("once", made.owner)
        audited = await made.it.facts(AuditRecord)
        assert [(one.what, one.by, one.ok) for one in audited] == [
            ("approve", made.owner, True),
            ("approve", made.owner, False),
        ]
        assert "by a button" in audited[0].evidence


@both
async def test_what_a_guest_taps_or_forges_is_what_they_might_write(
    platform: str, tmp_path: Path
) -> None:
    async with stage(platform, tmp_path) as made:
        async with made.it.inside():
            await made.ready()
            made.mentions("make it")
            number, _, taps = await notice(made)
            refusals = [
                await answered(made, made.tap("guest", number, taps[0])),
                await answered(made, made.tap("guest", number, "approve zzzz", forged=True)),
                await answered(made, made.tap("guest", number, "role set admin", forged=True)),
            ]
            assert [text.startswith("This command needs the role admin") for text in refusals] == [
                True
            ] * 3
            assert "guest" in await answered(made, made.tap("guest", number, "whoami", forged=True))
            assert not results(made)
            here = [one for one in made.notices() if one[0] == number]
            assert here[0][2] == taps
            await answered(made, made.tap("owner", number, taps[1]))
            assert await closed(made, number) == f"Denied by {made.owner_name}."
            await made.until(lambda: bool(results(made)))
        assert files(tmp_path) == 0
        assert [(one.verdict, one.by) for one in await made.it.facts(ApprovalEnded)] == [
            ("denied", made.owner)
        ]


@both
@pytest.mark.parametrize(("choice", "made_files"), [("Yes", 1), ("No", 0)])
async def test_a_long_call_is_shown_whole_by_a_tap_and_decided_there(
    platform: str, choice: str, made_files: int, tmp_path: Path
) -> None:
    long = json.dumps({"path": "made.txt", "text": " ".join(f"word{one}" for one in range(60))})
    async with stage(platform, tmp_path, arguments=long) as made:
        async with made.it.inside():
            await made.ready()
            made.mentions("make it")
            number, text, taps = await notice(made)
            name = taps[0].removeprefix("show ")
            assert taps == [f"show {name}", f"deny {name}"]
            assert "word59" not in text
            assert await answered(made, made.tap("guest", number, taps[0])) == (
                "This command needs the role admin or above."
            )
            for _ in range(2):  # it is shown once
                tap = made.tap("owner", number, taps[0])
                assert await answered(made, tap) == "The whole call is below."
            await made.until(lambda: len([one for one in made.notices() if one[2]]) == 2)
            whole, text, below = await notice(made)
            shown = re.sub(r"[`\n]", "", text)
            assert long in shown
            assert below == [f"approve {name}", f"deny {name}"]
            await answered(made, made.tap("owner", whole, below[choice == "No"]))
            verdict = "Approved" if choice == "Yes" else "Denied"
            for one in (number, whole):
                assert await closed(made, one) == f"{verdict} by {made.owner_name}."
            await made.until(lambda: any("So be it." in text for _, text, _ in made.notices()))
            assert len(made.notices()) == 3
        assert files(tmp_path) == made_files


@both
async def test_a_tap_after_a_crash_is_answered_and_its_notice_closed(
    platform: str, tmp_path: Path
) -> None:
    """On Telegram the tap waits for us; Discord tells nobody of one that is made while nobody
    listens."""
    async with stage(platform, tmp_path) as made:
        await made.it.start()
        await made.ready()
        made.mentions("make it")
        number, _, taps = await notice(made)
        while not await made.it.facts(
            DeliveryReport
        ):  # else nobody knows that it was shown, and where
            await asyncio.sleep(0.05)
        await made.it.kill()
        made.it.model.default = lambda _: Answer(text="Never mind.")
        tap = made.tap("owner", number, taps[0]) if platform == "telegram" else None
        await made.it.start()
        assert await closed(made, number) == "Ended: nobody needs it any more."
        if platform == "discord":
            tap = made.tap("owner", number, taps[0], forged=True)
        assert (await answered(made, tap)).endswith("any more.")
        await made.it.end()
        assert [one.verdict for one in await made.it.facts(ApprovalEnded)] == ["dropped"]
        assert files(tmp_path) == 0


async def test_a_strangers_code_in_a_link_asks_the_owner_and_lets_nobody_in(tmp_path: Path) -> None:
    async with stage("telegram", tmp_path) as made:
        assert isinstance(made, OnTelegram)
        made.it.config["access"]["dm"] = "pairing"
        made.it.write()
        async with made.it.inside():
            where = made.alone("guest", "let me in")
            await made.until(lambda: bool(made.notices(where)))
            code, *_ = re.findall(r"[A-Z0-9]{4}-[A-Z0-9]{4}", made.notices(where)[0][1])
            owner = made.people["owner"]
            made.it.api.commands(owner, owner, f"/start {code}")
            number, text, taps = await notice(made, owner)
            assert "asks to talk to me in private" in text
            assert not await made.it.facts(RoleAssigned)
            tap = made.tap("owner", number, taps[0], where=owner)
            assert (await answered(made, tap)).startswith("Approved: ")
