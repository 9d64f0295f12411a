"""The growing answer on Telegram and Discord: its messages stand once and whole, whatever is cut
off."""

from pathlib import Path

import pytest

from reverie.testing.channels import story
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.model_api import Answer, Json
from tests.gateway.system.platforms import discord_kit, telegram_kit
from tests.kits.delivery_judge import fair
from tests.kits.gateway_process import Program

HURRY = """
import channels.discord.channel, channels.telegram.channel, gateway.app, gateway.plugins.previews
gateway.app.TURN_GRACE_S = 0.05
gateway.plugins.previews.FIRST_LOOK_S = 0.02
channels.telegram.channel.TelegramChannel.preview_interval_s = 0.05
channels.discord.channel.DiscordPreviewChannel.preview_interval_s = 0.05
"""
SAY = "POST /channels/[0-9]+/messages"


def ends_with_its_last_word(it: Program) -> None:
    """Make the model name the tokens first, then write for about two seconds."""

    def answer(body: Json) -> Answer:
        tokens = it.tokens_of(body)
        text = f"{' '.join(dict.fromkeys(tokens))} " + "and so on.\n\n" * 33 + "The end."
        return Answer(text=text, pace_s=24 / len(text))

    it.model.default = answer


@pytest.mark.system
@pytest.mark.parametrize("moment", ["growing", "sent", "unsent", "finishing", "stopped"])
@story
async def test_a_growing_answer_that_is_cut_off_stands_once_and_whole_on_telegram(
    tmp_path: Path, moment: str
) -> None:
    async with telegram_kit.town(tmp_path, sabotage=HURRY, preview="all", request_timeout=30) as it:
        ends_with_its_last_word(it)
        ann, lounge, calls = it.api.person("Ann"), it.api.group("lounge"), it.api.faults
        await it.start()
        await it.api.called("getUpdates")
        if moment in ("sent", "unsent"):
            calls.stall("sendMessage", after=moment == "sent")
        if moment == "finishing":
            calls.stall(
                "editMessageText", after=True, where=lambda call: "The end." in call["text"]
            )
        it.say(ann, lounge)
        await it.api.called("sendMessage" if moment in ("sent", "unsent") else "editMessageText")
        if moment == "finishing":
            await it.api.until(lambda: it.api.said(lounge)[0].endswith("The end."))
        await (it.end() if moment == "stopped" else it.kill())
        calls.clear()
        await it.start()
        await it.api.until(lambda: [text[-8:] for text in it.api.said(lounge)] == ["The end."])
        await it.calm()
        await it.end()
        assert len(it.api.said(lounge)) == 1
        found = await it.verdict()
        fair(found)
        assert found.uncertain == 0
        if moment in ("growing", "finishing", "stopped"):
            assert not it.api.asked("deleteMessage")
            assert len(it.api.asked("sendMessage")) == 1


@pytest.mark.system
@pytest.mark.parametrize("moment", ["growing", "sent", "finishing"])
@story
async def test_a_growing_answer_that_is_cut_off_stands_once_and_whole_on_discord(
    tmp_path: Path, moment: str
) -> None:
    async with discord_kit.town(tmp_path, preview="all", request_timeout=30) as it:
        it.code = f"{HURRY}\n{it.code}"
        ends_with_its_last_word(it)
        await it.start()
        await it.api.connected()
        if moment == "sent":
            it.api.faults.add(SAY, "silent")
        it.say()
        await it.api.until(lambda: _is_at(it.api, moment))
        await it.kill()
        await it.start()
        await it.api.until(
            lambda: [text[-8:] for text in it.api.texts(it.api.room)] == ["The end."]
        )
        await it.calm()
        await it.end()
        assert (await it.fair()).uncertain == 0
        assert moment == "sent" or not it.api.made("DELETE")


def _is_at(api: DiscordApi, moment: str) -> bool:
    texts = api.texts(api.room)
    match moment:
        case "sent":
            return bool(texts)
        case "growing":
            return len(api.made("PATCH")) > 1
        case _:
            return bool(texts) and texts[0].endswith("The end.")
