"""The growing answer on Telegram and Discord: its messages stand once and whole, whatever is cut
off."""

import re
from itertools import pairwise
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
FETCH = ("c1", "web_fetch", '{"url": "https://example.org/page?q=private"}')
LOOKING, STATUS = "Let me look it up.", "Reading example.org…"


def ends_with_its_last_word(it: Program, *, chars: int = 400, looks: bool = False) -> None:
    """Make the model name the tokens first, then write for about two seconds. `looks`: it fetches a
    page before."""

    def answer(body: Json) -> Answer:
        if looks and not any(one["role"] == "tool" for one in body["messages"]):
            it.tokens_of(body)
            return Answer(text=LOOKING, calls=(FETCH,))
        tokens = re.findall(
            r"t\d+z", str([one for one in body["messages"] if one["role"] == "user"][-1])
        )
        if not looks:
            it.tokens_of(body)
        text = f"{' '.join(dict.fromkeys(tokens))} " + "and so on.\n\n" * (chars // 12) + "The end."
        return Answer(text=text, pace_s=24 / len(text), delay_s=0.2 if looks else 0.0)

    it.model.default = answer


def ends(texts: list[str]) -> bool:
    return bool(texts) and texts[-1].endswith("The end.")


def judge_growth(shown: list[list[str]], parts: list[str]) -> None:
    """What each message showed in turn: the first one the status; then ever more of its part, and
    that at last."""
    assert any(STATUS in text for text in shown[0][:-2])
    for texts, part in zip(shown, parts, strict=True):
        # What is said beside the call may be seen before the status, also in part.
        grown = [text for text in texts if STATUS not in text and not LOOKING.startswith(text)]
        assert len(grown) > 1
        for before, after in pairwise(grown):
            # Once it is full it may end with a paragraph, and the rest is in the next one.
            assert after.startswith(before) or (after == part and before.startswith(after)), (
                before[-80:],
                after[-80:],
            )
        assert grown[-1] == part
    assert ends(parts)


@story
async def test_a_long_answer_with_a_tool_grows_from_message_to_message_on_telegram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.plugins.previews.FIRST_LOOK_S", 0.02)
    monkeypatch.setattr("channels.telegram.channel.TelegramChannel.preview_interval_s", 0.05)
    async with telegram_kit.town(tmp_path, preview="all") as it:
        ends_with_its_last_word(it, chars=5000, looks=True)
        ann, lounge = it.api.person("Ann"), it.api.group("lounge")
        async with it.inside():
            it.say(ann, lounge)
            it.say(ann)
            await it.api.until(lambda: ends(it.api.said(lounge)) and ends(it.api.said(ann)))
            await it.calm()
        ours = [call for call in it.api.calls if call.parameters.get("chat_id") == lounge.id]
        begun, following = (call for call in ours if call.method == "sendMessage")
        assert begun.parameters["reply_parameters"]["message_id"] == 1
        edits = [call for call in ours if call.method == "editMessageText"]
        ids = list(dict.fromkeys(call["message_id"] for call in edits))
        texts = [[call["text"] for call in edits if call["message_id"] == number] for number in ids]
        judge_growth(
            [[begun["text"], *texts[0]], [following["text"], *texts[1]]], it.api.said(lounge)
        )
        assert texts[1][-1].endswith("The end.")
        drafts = it.api.world.chats[ann.id].drafts
        first, second = dict.fromkeys(ident for ident, _ in drafts)
        texts = [[text for ident, text in drafts if ident == number] for number in (first, second)]
        judge_growth(
            [[*texts[0], it.api.said(ann)[0]], [*texts[1], it.api.said(ann)[1]]], it.api.said(ann)
        )
        assert not it.api.asked("deleteMessage")


@story
async def test_a_long_answer_with_a_tool_grows_from_message_to_message_on_discord(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.plugins.previews.FIRST_LOOK_S", 0.02)
    async with discord_kit.town(tmp_path, preview="all") as it:
        ends_with_its_last_word(it, chars=2500, looks=True)
        async with it.inside():
            await it.api.connected()
            it.say()
            await it.api.until(lambda: ends(it.api.texts(it.api.room)))
            await it.calm()
        begun, following = it.api.made(SAY)
        assert (
            begun.body["message_reference"] is not None,
            "message_reference" in following.body,
        ) == (True, False)
        edits = it.api.made("PATCH /channels/[0-9]+/messages")
        lines = list(dict.fromkeys(call.line for call in edits))
        texts = [[call.body["content"] for call in edits if call.line == line] for line in lines]
        judge_growth(
            [[begun.body["content"], *texts[0]], [following.body["content"], *texts[1]]],
            it.api.texts(it.api.room),
        )
        assert (it.api.made("DELETE"), it.api.offences) == ([], [])


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
