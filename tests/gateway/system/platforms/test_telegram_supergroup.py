"""The whole gateway while a group becomes a supergroup: it is one conversation, and nothing said in it is lost."""

from pathlib import Path

import pytest

from channels.telegram.render import TelegramText
from gateway.core.facts import PartSendEnded
from tests.gateway.system.platforms.telegram_kit import Town, town
from tests.kits.channels import story
from tests.kits.delivery_judge import Evidence, Shown, Verdict, fair, judge
from tests.servers.bot_api_world import Chat


async def verdict(it: Town, *chats: Chat) -> Verdict:
    """As the town's, with all of these as one place, known by the first."""
    wire = [Shown(str(chats[0].id), TelegramText(text=text).to_json()) for chat in chats for text in it.api.said(chat)]
    return judge(Evidence(entries=await it.entries(), wire=wire, asked=it.asked))


@story
async def test_a_conversation_goes_on_where_its_group_moves_to(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        ann, old = it.api.person("Ann"), it.api.group("lounge", basic=True)
        async with it.inside():
            await it.answered(*[it.say(ann, old) for _ in range(9)])
            new = it.api.migrates(old, ann)
            await it.answered(*[it.say(ann, new) for _ in range(9)])  # the numbers of the first nine, again
            await it.calm()
        found = await verdict(it, old, new)
        fair(found)
        assert (found.answered, found.uncertain) == (18, 0)
        ended = [one.conversation for one in await it.entries() if isinstance(one.fact, PartSendEnded)]
        assert len(set(ended)) == 1


@pytest.mark.system
@story
async def test_a_move_behind_our_back_costs_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        ann, old = it.api.person("Ann"), it.api.group("lounge", basic=True)
        tokens = [it.say(ann, old) for _ in range(20)]
        new = it.api.migrates(old, ann)
        tokens += [it.say(ann, new) for _ in range(20)]
        it.slow_s = 0.2
        await it.start()
        await it.api.until(lambda: it.heard(tokens[0]) > 0 or len(it.asked) > 0)
        await it.kill()
        it.api.faults.drop("getUpdates", after=True)
        it.api.faults.fail("sendMessage", 429, retry_after=1)
        await it.start()
        await it.calm()
        await it.end()
        found = await verdict(it, old, new)
        fair(found)
        assert not it.api.said(old)
        assert found.accepted == 40
