"""Screenshots of one scene on each platform, for the pages in docs/platforms: `make screenshots`.

The gateway is a real one each time, its model is scripted. On IRC people use WeeChat in tmux, on InspIRCd with Atheme.
On Telegram and Discord they are on the strict fakes, and what those accepted (entities, keyboards, components, edits)
is drawn as the platform's client would draw it. Chromium takes the pictures. Needs Debian's `chromium`, `tmux`,
`weechat-curses`, `inspircd`, `atheme-services` and `pngquant`.
"""

import asyncio
import base64
import contextlib
import html
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, async_playwright

from tests.kits.gateway_process import Program
from tests.kits.irc_network import network
from tests.kits.platform_users import IrcClient
from tests.servers.bot_api import BotApi
from tests.servers.bot_api_world import Chat, Person
from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_world import EPHEMERAL
from tests.servers.model_api import Answer, Json, ModelApi
from tests.servers.web_server import Page, WebServer

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
WAIT_S: Final = 60.0

WHY: Final = "why are its lower leaves yellow?"
TABLE: Final = "what do the three beds need this week? a table, please"
CODE: Final = "can you write a script that warns us when a bed gets dry?"
SAVE: Final = "please keep the table in beds.md"
STRANGER: Final = "hi! may I ask about compost?"
WELCOME: Final = "and what may I put on the compost in winter?"

BEDS: Final = """\
| bed | water | feed | to do |
|---|---|---|---|
| tomatoes | every 2 days | **yes**, nettle brew | tie up, prune |
| beans | every 3 days | no | pick while small |
| salad | daily, mornings | no | sow again on `Sat` |
"""
SCRIPT: Final = '''\
It asks the sensors every ten minutes and writes once per dry spell:

```python
#!/usr/bin/env python3
"""Say which beds are dry. One message per dry spell."""
import argparse
import json
import sys
import time
import urllib.request
from pathlib import Path

SENSORS = {
    "tomatoes": "http://sensor-1.local/moisture",
    "beans": "http://sensor-2.local/moisture",
    "salad": "http://sensor-3.local/moisture",
}


def moisture(url: str) -> float:
    """From 0 (dust) to 1 (pond)."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return float(json.load(answer)["moisture"])


def look(dry: set[str], low: float, high: float) -> None:
    """Read each sensor once; two limits, so that it does not flutter."""
    for bed, url in SENSORS.items():
        try:
            now = moisture(url)
        except (OSError, ValueError, KeyError) as error:
            print(f"{bed}: no reading ({error})", file=sys.stderr)
            continue
        if now < low and bed not in dry:
            dry.add(bed)
            print(f"{time.ctime()} {bed} is dry: {now:.0%}", flush=True)
        elif now > high:
            dry.discard(bed)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--low", type=float, default=0.25, help="dry below")
    asked.add_argument("--high", type=float, default=0.35, help="wet above")
    asked.add_argument("--pause", type=int, default=600, help="seconds")
    asked.add_argument("--once", action="store_true", help="for a test")
    asked.add_argument("--sensors", type=Path, help="JSON: bed to address")
    chosen = asked.parse_args()
    if chosen.low >= chosen.high:
        asked.error("--low has to be below --high")
    if chosen.sensors is not None:
        SENSORS.clear()
        SENSORS.update(json.loads(chosen.sensors.read_text()))
    dry: set[str] = set()
    while True:
        look(dry, chosen.low, chosen.high)
        if chosen.once:
            return
        time.sleep(chosen.pause)


if __name__ == "__main__":
    main()
```

Start it with `python3 dry.py | tee -a dry.log`.'''
LEAVES: Final = (
    "The plant moves its **nitrogen** from old leaves to new ones, so the lower ones yellow first.\n\n"
    "1. Take the yellow leaves off.\n"
    "2. Feed it once a week until August.\n"
    "3. Water the *soil*, not the leaves."
)
COMPOST: Final = "Kitchen scraps, coffee and cardboard. No cooked food: it brings rats."

PHOTO: Final = """\
<svg style='display:block' xmlns="http://www.w3.org/2000/svg" width="640" height="400">
<rect width="640" height="400" fill="#b9d7ea"/><rect y="270" width="640" height="130" fill="#8a8f94"/>
<rect x="225" y="290" width="190" height="95" fill="#b5532f"/>
<rect x="212" y="272" width="216" height="26" fill="#c9653d"/>
<path d="M320 280C312 190 330 120 318 30" stroke="#4f7d33" stroke-width="9" fill="none"/>
<g fill="#3f8f3a"><ellipse cx="250" cy="75" rx="72" ry="24" transform="rotate(18 250 75)"/>
<ellipse cx="392" cy="95" rx="74" ry="24" transform="rotate(-20 392 95)"/>
<ellipse cx="246" cy="140" rx="70" ry="22" transform="rotate(-8 246 140)"/></g>
<g fill="#e3c441"><ellipse cx="398" cy="178" rx="72" ry="22" transform="rotate(14 398 178)"/>
<ellipse cx="240" cy="212" rx="68" ry="21" transform="rotate(-22 240 212)"/>
<ellipse cx="394" cy="240" rx="58" ry="18" transform="rotate(26 394 240)"/></g>
<g fill="#d43a2c"><circle cx="352" cy="130" r="19"/><circle cx="292" cy="172" r="16"/></g></svg>"""


async def picture(browser: Browser, body: str, style: str = "", width: int = 640) -> bytes:
    """PNG of a page."""
    page = await browser.new_page(viewport={"width": width, "height": 100})
    await page.set_content(f"<!doctype html><meta charset=utf-8><style>body{{margin:0}}{style}</style>{body}")
    taken = await page.screenshot(full_page=True)
    await page.close()
    return taken


def keep(name: str, taken: bytes) -> None:
    """Write it with 64 colours, which these pictures do not miss."""
    small = subprocess.run(["pngquant", "64", "-"], input=taken, capture_output=True, check=True).stdout
    (IMAGES / f"{name}.png").write_bytes(small)
    print(f"docs/images/{name}.png: {len(small) / 1000:.0f} kB")


def answer(body: Json) -> Answer:
    """What the model says to the newest line, and to what its tools brought since."""
    if "call `yield_to_user`" in json.dumps(body["messages"][-1]):
        return Answer(calls=(("c3", "yield_to_user", "{}"),))
    lines = (WHY, TABLE, CODE, SAVE, WELCOME)
    said = [json.dumps(one, ensure_ascii=False) for one in body["messages"]]
    at, asked = max((at, line) for at, text in enumerate(said) for line in lines if line in text)
    since = said[at + 1 :]
    if asked == WHY and "image_url" not in "".join(said[at:]):
        link = re.search(r"http://127[^ ]*png", "".join(said[at - 1 :]))
        assert link, "there is no picture"
        assert not since, "the picture was not shown"
        return Answer(calls=(("c1", "web_fetch", json.dumps({"url": link[0]})),))
    if asked == SAVE:
        call = ("c2", "write_file", json.dumps({"path": "beds.md", "text": BEDS}))
        return Answer(text="It is in `beds.md` now.") if since else Answer(calls=(call,))
    return Answer(text={WHY: LEAVES, TABLE: BEDS, CODE: SCRIPT, WELCOME: COMPOST}[asked])


def staged(directory: Path, model: ModelApi, settings: Json, owner: str, member: str) -> Program:
    """A gateway for the scene, with one channel `PLATFORM.home`. `owner`, `member`: ids of people there."""
    model.default = answer
    channel = f"{settings['platform']}.home"
    made = Program(directory, model, 1, {channel: settings}, context_tokens=100_000)
    made.config["llm"]["models"]["main"]["sees"] = True
    made.config["access"] |= {
        "dm": "pairing",
        "roles": {"owner": [f"{channel}:{owner}"], "member": [f"{channel}:{member}"]},
    }
    made.config["tools"] = {
        "rules": [{"tool": "write_file", "role": "member", "approval": "always"}],
        "web": {"allow_private": ["127.0.0.0/8"]},
    }
    made.write()
    return made


COLUMNS: Final = 112


class WeeChat:
    """Somebody at a terminal."""

    def __init__(self, socket: str, nick: str) -> None:
        self._tmux, self.nick = ["tmux", "-L", socket, "-f", "/dev/null"], nick

    def begin(self, directory: Path, port: int) -> None:
        """Connect and enter the room."""
        (directory / "irc").mkdir(parents=True)
        first = [
            "/bar hide buflist",
            "/set weechat.look.paste_max_lines -1",
            "/set weechat.look.buffer_time_format %H:%M",
            "/set weechat.look.prefix_align_max 8",
            "/set weechat.look.color_inactive_window off",
            "/set irc.look.server_buffer independent",
            *(f"/set weechat.bar.{bar}.color_bg 238" for bar in ("title", "status")),
            f"/set irc.server_default.nicks {self.nick}",
            f"/set irc.server_default.sasl_username {self.nick}",
            f"/set irc.server_default.sasl_password {PASSWORD}",
            f"/set irc.server_default.username {self.nick}",
            f"/set irc.server_default.realname {self.nick.title()}",
            "/set irc.server_default.tls off",
            "/set irc.server_default.autojoin #garden",
            f"/server add home 127.0.0.1/{port}",
            "/connect home",
        ]
        run = [word for line in first for word in ("-r", line)]
        command = ["env", "TERM=tmux-256color", "weechat", "-d", str(directory), *run]
        self._do("new-session", "-d", "-s", self.nick, "-x", str(COLUMNS), "-y", "60", *command)
        self._do("set-option", "-g", "default-terminal", "tmux-256color")

    def types(self, line: str) -> None:
        self._do("send-keys", "-t", self.nick, "-l", line)
        self._do("send-keys", "-t", self.nick, "Enter")

    def screen(self, *options: str) -> str:
        return self._do("capture-pane", "-p", "-t", self.nick, *options)

    async def picture(self, title: str, lines: int, last: str) -> str:
        """HTML of the terminal with so many lines, once it is drawn down to that text."""
        self._do("resize-window", "-t", self.nick, "-x", str(COLUMNS), "-y", str(lines))
        drawn, before = rf"(?s){last}.*\n *\[\d\d:\d\d\][^\n]*\n\[@?{self.nick}\]\s*$", ""
        async with asyncio.timeout(WAIT_S):
            while (screen := self.screen("-e", "-N")) != before or not re.search(drawn, self.screen()):
                before = screen
                await asyncio.sleep(0.2)
        shown = terminal(screen)
        return f"<figure><figcaption>{html.escape(title)}</figcaption><pre>{shown}</pre></figure>"

    async def sees(self, pattern: str) -> re.Match[str]:
        """Return once that is on the screen."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while not (found := re.search(pattern, self.screen())):
                    await asyncio.sleep(0.1)
                return found
        raise TimeoutError(f"{self.nick} waits for {pattern}:\n{self.screen()}")

    def end(self) -> None:
        self._do("kill-session", "-t", self.nick)

    def _do(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True).stdout


BASIC: Final = ("#1d2026", "#e06c75", "#8fbf6b", "#d8a657", "#6ea3dc", "#c08fd6", "#5fb8b8", "#c8ccd4")
BRIGHT: Final = ("#6b7280", "#f0868e", "#a9d787", "#ecc17a", "#8dbdf2", "#d7abec", "#7fd2d2", "#ffffff")


def colour(number: int) -> str:
    """Of the 256 of a terminal."""
    if number < 16:
        return (*BASIC, *BRIGHT)[number]
    if number < 232:
        steps = (0, 95, 135, 175, 215, 255)
        number -= 16
        return "#{:02x}{:02x}{:02x}".format(*(steps[number // size % 6] for size in (36, 6, 1)))
    return "#" + f"{8 + 10 * (number - 232):02x}" * 3


def terminal(screen: str) -> str:
    """HTML of a screen with SGR sequences, as `tmux capture-pane -e` writes them."""
    style: dict[str, str] = {}
    shown = ""
    for codes, text in re.findall(r"(?:^|\x1b\[([\d;]*)m)([^\x1b]*)", screen):
        numbers = [int(code or 0) for code in codes.split(";")] if codes is not None else []
        while numbers:
            match number := numbers.pop(0):
                case 0:
                    style.clear()
                case 1:
                    style["font-weight"] = "bold"
                case 3:
                    style["font-style"] = "italic"
                case 4:
                    style["text-decoration"] = "underline"
                case 7:
                    style["filter"] = "invert(1)"
                case 38 | 48 if numbers[:1] == [5]:
                    style["color" if number == 38 else "background"] = colour(numbers[1])
                    del numbers[:2]
                case 39 | 49:
                    style.pop("color" if number == 39 else "background", None)
                case _ if number // 10 in (3, 4, 9, 10):
                    style["color" if number // 10 in (3, 9) else "background"] = colour(
                        number % 10 + (8 if number >= 90 else 0)
                    )
        look = ";".join(f"{name}:{value}" for name, value in style.items())
        shown += f'<span style="{look}">{html.escape(text)}</span>' if look else html.escape(text)
    return shown


TERMINAL: Final = """
body{background:#12141a;display:grid;gap:12px;padding:12px;width:max-content}
figure{margin:0;background:#1d2026;border:1px solid #3a3f4b;border-radius:6px;overflow:hidden}
figcaption{font:12px 'DejaVu Sans';color:#9aa3b2;background:#2a2e37;padding:5px 10px}
pre{margin:0;padding:8px 10px;font:13px/16px 'DejaVu Sans Mono';color:#c8ccd4}
"""


PASSWORD: Final = "correcthorse"


@contextlib.asynccontextmanager
async def people_on_irc(directory: Path) -> AsyncIterator[tuple[int, list[WeeChat]]]:
    """The server's port, and Ann, Ben and Zoe in the room."""
    socket = f"rooms-{os.getpid()}"
    people = [WeeChat(socket, nick) for nick in ("ann", "ben", "zoe")]
    with network(directory) as port:
        for one in people:
            client = IrcClient(one.nick, port)
            await client.begin()
            client.send(f"PRIVMSG NickServ :REGISTER {PASSWORD} {one.nick}@example.org")
            await client.until(rf":NickServ\S* NOTICE {one.nick} :.*(registered|REGISTERED)")
            await client.end()
        try:
            for one in people:
                one.begin(directory / one.nick, port)
                await one.sees("has joined #garden")
            yield port, people
        finally:
            for one in people:
                one.end()


async def on_irc(browser: Browser, directory: Path) -> bytes:
    """What Ann has on her terminal, and the stranger on hers."""
    async with (
        ModelApi() as model,
        WebServer() as site,
        people_on_irc(directory) as (port, (ann, ben, zoe)),
    ):
        site.pages["/tomato.png"] = Page(await picture(browser, PHOTO), {"content-type": "image/png"})
        settings: Json = {"platform": "irc", "host": "127.0.0.1", "port": port, "tls": False, "nick": "reverie"}
        settings |= {"rooms": ["#garden"], "flood": {"burst": 100, "per_s": 100}}
        gateway = staged(directory, model, settings, "account:ann", "account:ben")
        gateway.config["access"]["tell"] = "irc.home/ann"
        gateway.write()
        async with gateway.inside():
            await ann.sees(r"reverie .* has joined")
            ann.types("/topic Beds, beans and compost")
            await ann.sees("has changed topic")
            ann.types("/query reverie")
            ann.types("/buffer #garden")
            ben.types(f"my tomato: {site.url('/tomato.png')}")
            await ann.sees(r"tomato\.png")
            ann.types(f"reverie: ben's picture, {WHY}")
            await ann.sees("not the leaves")
            ben.types(f"reverie: {TABLE}")
            await ann.sees("sow again")
            ann.types(f"reverie: {CODE}")
            await ann.sees("more")
            ben.types(f"reverie: {SAVE}")
            number = await ann.sees(r"!approve (\w+)")
            await ann.sees("always`:")
            ann.types(f"!approve {number[1]}")
            await ann.sees(r"It is in \S+ now")
            shown = await ann.picture("ann in #garden", 52, "It is in")
            zoe.types("/query reverie")
            zoe.types(STRANGER)
            await zoe.sees(r"pair approve")
            ann.types("/buffer reverie")
            number = await ann.sees(r"!pair approve (\w+)")
            ann.types(f"!pair approve {number[1]}")
            await zoe.sees("rom now on")
            zoe.types(WELCOME)
            await zoe.sees("rats")
            shown += await zoe.picture("zoe, a stranger, alone with the bot", 13, "rats")
            shown += await ann.picture("ann, its owner, alone with it", 10, r"!pair approve \w+ *\n[^\n]*reverie ")
    return await picture(browser, shown, TERMINAL, 920)


TELEGRAM: Final = """
body{background:#0e1621;display:grid;grid-template-columns:660px 400px;gap:12px;padding:12px;color:#f5f5f5;
font:14px/1.35 'DejaVu Sans'}
section{background:#17212b;border-radius:8px;overflow:hidden;margin-bottom:12px;align-self:start}
h2{font-size:14px;margin:0;padding:9px 14px;background:#202b36}h2 small{color:#7d8e9e;font-weight:normal;display:block}
.one{display:flex;padding:3px 12px;flex-direction:column;align-items:flex-start}.mine{align-items:flex-end}
.bubble{background:#222e3a;border-radius:10px;padding:6px 10px;margin:2px 0;max-width:88%;overflow-wrap:anywhere}
.mine .bubble{background:#2b5278}.text{white-space:pre-wrap}.name{font-weight:bold;font-size:13px}
time{float:right;font-size:11px;color:#7d8e9e;margin:6px 0 0 10px}
.reply{border-left:3px solid #65aadd;background:#65aadd22;border-radius:4px;padding:2px 8px;margin:3px 0;font-size:13px;
display:flex;gap:8px;align-items:center}.reply img{height:32px;border-radius:3px}.bubble>img{width:320px;display:block;
border-radius:6px;margin:4px 0}
code{font:13px 'DejaVu Sans Mono';color:#7fb9ea}
pre{font:12px/1.4 'DejaVu Sans Mono';background:#0f171f;border-left:3px solid #65aadd;border-radius:4px;margin:4px 0;
padding:4px 8px;white-space:pre-wrap}pre b{display:block;color:#65aadd}
blockquote{border-left:3px solid #65aadd;background:#65aadd22;margin:3px 0;padding:2px 8px;border-radius:4px}
a{color:#6ab3f3;text-decoration:none}.keys{display:grid;gap:3px;margin:3px 0;width:88%}.row{display:flex;gap:3px}
.row span{flex:1;background:#2b3b4a;border-radius:6px;text-align:center;padding:6px}
.toast{background:#000a;border-radius:8px;padding:6px 12px;margin:4px auto;font-size:13px}
"""
HUES: Final = ("#e17076", "#7bc862", "#65aadd", "#ee7aae", "#faa774")


def hue(name: str) -> str:
    return HUES[sum(name.encode()) % len(HUES)]


def inline(data: bytes) -> str:
    """An `src`."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def marked(text: str, entities: Sequence[Json]) -> str:
    """HTML of a text with entities (core.telegram.org/bots/api#messageentity), which count UTF-16 units."""
    raw = text.encode("utf-16-le")
    begins = sorted(entities, key=lambda one: (one["offset"], -one["length"]))
    places = sorted(
        {0, len(raw) // 2, *(at for one in entities for at in (one["offset"], one["offset"] + one["length"]))}
    )
    tags = {"bold": "b", "italic": "i", "underline": "u", "strikethrough": "s", "code": "code", "pre": "pre"}
    tags |= {"blockquote": "blockquote", "expandable_blockquote": "blockquote"}
    out, open_tags = "", list[tuple[int, str]]()
    for at, then in zip(places, [*places[1:], places[-1]], strict=True):
        while open_tags and open_tags[-1][0] <= at:
            out += f"</{open_tags.pop()[1]}>"
        for one in (one for one in begins if one["offset"] == at):
            tag = tags.get(one["type"], "a")
            out += f"<{tag}>" + (f"<b>{html.escape(one['language'])}</b>" if one.get("language") else "")
            open_tags.append((at + one["length"], tag))
        out += html.escape(raw[2 * at : 2 * then].decode("utf-16-le"))
    return re.sub(r"(</(?:pre|blockquote)>)\n", r"\1", out)


def spans(texts: Iterable[str]) -> str:
    return "".join(f"<span>{html.escape(text)}</span>" for text in texts)


def telegram_chat(api: BotApi, chat: Chat | Person, me: Person, note: str, toast: str = "") -> str:
    """HTML of a chat as `me` sees it now. `toast`: what a tap of theirs was answered."""

    def photo(body: Json) -> str:
        return f"<img src='{inline(api.world.files[body['photo'][-1]['file_id']][1])}'>" if "photo" in body else ""

    shown = ""
    for one in api.shown(chat):
        body, author = one.body, one.body["from"]
        mine = author["id"] == me.id
        text = marked(one.text, body.get("entities") or body.get("caption_entities") or [])
        inside = (
            ""
            if mine or isinstance(chat, Person)
            else f"<div class=name style='color:{hue(author['first_name'])}'>{author['first_name']}</div>"
        )
        if to := body.get("reply_to_message"):
            quoted = html.escape(to.get("text", to.get("caption", "Photo"))[:60].replace("\n", " "))
            inside += f"<div class=reply>{photo(to)}<div><b>{to['from']['first_name']}</b><br>{quoted}</div></div>"
        clock = time.strftime("%H:%M", time.localtime(body["date"]))
        inside += f"{photo(body)}<div class=text>{text}<time>{'edited ' if one.edits else ''}{clock}</time></div>"
        rows = (one.buttons or {}).get("inline_keyboard", [])
        keys = "".join(f"<div class=row>{spans(key['text'] for key in row)}</div>" for row in rows)
        shown += f"<div class='one{' mine' * mine}'><div class=bubble>{inside}</div>"
        shown += f"<div class=keys>{keys}</div></div>" if keys else "</div>"
    shown += f"<div class=one><div class=toast>{html.escape(toast)}</div></div>" if toast else ""
    title = api.world.bot.name if isinstance(chat, Person) else chat.title
    return f"<section><h2>{title}<small>{note}</small></h2>{shown}</section>"


async def on_telegram(browser: Browser, directory: Path) -> bytes:
    """A group as Ann sees it, and the stranger's chat and hers with the bot."""
    async with ModelApi() as model, BotApi() as api:
        ann, ben, zoe = (api.person(name, name.lower()) for name in ("Ann", "Ben", "Zoe"))
        garden = api.group("Garden")
        settings: Json = {"platform": "telegram", "token": api.token, "base_url": api.url, "rooms": [str(garden.id)]}
        gateway = staged(directory, model, settings, str(ann.id), str(ben.id))
        async with gateway.inside():

            async def says(chat: Chat | Person, pattern: str) -> re.Match[str]:
                """Return once the bot says it there."""
                await api.until(lambda: bool(re.search(pattern, "\n".join(api.said(chat)))), WAIT_S)
                found = re.search(pattern, "\n".join(api.said(chat)))
                assert found
                return found

            async def taps(chat: Chat | Person, label: str) -> str:
                """Ann taps a button of the newest message there, and is shown this."""
                await api.until(lambda: any(one.taps for one in api.shown(chat)), WAIT_S)
                one = [one for one in api.shown(chat) if one.taps][-1]
                data = next(
                    key["callback_data"]
                    for row in (one.buttons or {})["inline_keyboard"]
                    for key in row
                    if label in key["text"]
                )
                query = api.presses(chat, ann, one.id, data)
                await api.until(lambda: api.world.callbacks[query] is not None, WAIT_S)
                return str((api.world.callbacks[query] or {})["text"])

            api.commands(ann, ann, "/start")
            await says(ann, ".")
            media = {"media": {"width": 640, "height": 400}}
            seen = api.sends(garden, ben, "photo", await picture(browser, PHOTO), caption="my tomato", **media)
            api.mentions(garden, ann, WHY, reply_to=seen)
            await says(garden, "not the leaves")
            api.mentions(garden, ben, TABLE)
            await says(garden, "sow again")
            api.mentions(garden, ann, CODE)
            await says(garden, "dry.log")
            api.private_says(zoe, STRANGER)
            await says(zoe, "pair approve")
            toast = await taps(ann, "")
            await says(zoe, "rom now on")
            api.private_says(zoe, WELCOME)
            await says(zoe, "rats")
            api.mentions(garden, ben, SAVE)
            await api.until(lambda: any(one.taps for one in api.shown(garden)), WAIT_S)
            shown = telegram_chat(api, garden, ann, "group, as Ann sees it") + "<div>"
            shown += telegram_chat(api, zoe, zoe, "bot, as Zoe sees it, a stranger")
            shown += telegram_chat(api, ann, ann, "bot, as Ann sees it, its owner", toast) + "</div>"
    return await picture(browser, shown, TELEGRAM, 1096)


DISCORD: Final = """
body{background:#1a1b1e;display:grid;grid-template-columns:690px 400px;gap:12px;padding:12px;color:#dbdee1;
font:15px/1.4 'DejaVu Sans'}
section{background:#313338;border-radius:8px;overflow:hidden;margin-bottom:12px;padding-bottom:12px;align-self:start}
h2{font-size:15px;margin:0 0 6px;padding:10px 16px;border-bottom:1px solid #26272b}
h2 small{color:#949ba4;font-weight:normal}
.one{display:grid;grid-template-columns:40px 1fr;gap:0 14px;padding:7px 16px}
.one>div{min-width:0;overflow-wrap:anywhere}
.face{width:40px;height:40px;border-radius:50%;text-align:center;line-height:40px;color:#fff;font-weight:bold}
.reply{grid-column:2;font-size:13px;color:#b5bac1;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.reply:before{content:"\\256D\\2500 ";color:#4e5058}
.who b{color:#f2f3f5}
.who i{font:11px 'DejaVu Sans';background:#5865f2;color:#fff;border-radius:3px;padding:1px 4px;margin-left:5px}
.who time,small{color:#949ba4;font-size:12px;margin-left:6px}.text{white-space:pre-wrap}
.text ol,.text ul{margin:2px 0 2px 24px;padding:0;white-space:normal}
.one img{width:320px;border-radius:8px;margin-top:4px}
code{font:13px 'DejaVu Sans Mono';background:#2b2d31;border-radius:4px;padding:1px 4px}
pre{font:12.5px/1.35 'DejaVu Sans Mono';background:#2b2d31;border:1px solid #1e1f22;border-radius:4px;margin:4px 0;
padding:7px 9px;white-space:pre-wrap}
.at{background:#5865f24d;color:#c9cdfb;border-radius:3px;padding:0 2px}a{color:#00a8fc}
.key{display:inline-block;border-radius:3px;color:#fff;padding:5px 14px;margin:6px 8px 0 0;font-size:14px}
blockquote{border-left:4px solid #4e5058;margin:0;padding-left:12px}
"""
STYLES: Final = {1: "#5865f2", 2: "#4e5058", 3: "#248046", 4: "#da373c"}
"""Of buttons (discord.com/developers/docs/components/reference#button-button-styles)."""


def discord_text(text: str, names: Callable[[str], str]) -> str:
    """HTML of Markdown as Discord reads it (support.discord.com, Markdown Text 101). `names`: of who is mentioned."""
    out = ""
    for at, part in enumerate(re.split(r"(```.*?```|`[^`\n]+`)", text, flags=re.DOTALL)):
        if at % 2:
            fenced = part.startswith("```")
            inside = re.sub(r"^[\w+-]*\n", "", part[3:-3]).rstrip("\n") if fenced else part[1:-1]
            out += f"<pre>{html.escape(inside)}</pre>" if fenced else f"<code>{html.escape(inside)}</code>"
            continue
        shown = html.escape(part, quote=False)
        shown = re.sub(r"&lt;@!?(\d+)&gt;", lambda found: f"<span class=at>@{names(found[1])}</span>", shown)
        shown = re.sub(r"\[([^\]]+)\]\((?:&lt;)?(https?://[^)\s]+?)(?:&gt;)?\)", r"<a>\1</a>", shown)
        for mark, tag in ((r"\*\*", "b"), ("__", "u"), ("~~", "s"), (r"\*", "i"), ("_", "i")):
            shown = re.sub(rf"(?<![\w\\]){mark}(?=\S)(.+?)(?<=[^\s\\]){mark}(?!\w)", rf"<{tag}>\1</{tag}>", shown)
        shown = re.sub(
            r"^(#{1,3}) (.+)$",
            lambda found: f"<h{len(found[1])}>{found[2]}</h{len(found[1])}>",
            shown,
            flags=re.MULTILINE,
        )
        shown = re.sub(r"^-# (.+)$", r"<small>\1</small>", shown, flags=re.MULTILINE)
        shown = re.sub(r"^&gt; (.+)$", r"<blockquote>\1</blockquote>", shown, flags=re.MULTILINE)
        shown = re.sub(r"(?:^\d+\. .+\n?)+", lambda found: listed("ol", found[0]), shown, flags=re.MULTILINE)
        shown = re.sub(r"(?:^[-*] .+\n?)+", lambda found: listed("ul", found[0]), shown, flags=re.MULTILINE)
        out += re.sub(r"\\([*_~`>|\\#.-])", r"\1", shown)
    return re.sub(r"\n?(</?(?:pre|blockquote|h\d|ol|ul)>)\n?", r"\1", out)


def listed(tag: str, lines: str) -> str:
    items = "".join(f"<li>{line.split(' ', 1)[1]}</li>" for line in lines.splitlines())
    return f"<{tag}>{items}</{tag}>"


def discord_chat(api: DiscordApi, channel: str, title: str, note: str) -> str:
    """HTML of a channel as it is shown now."""

    def name(user: str) -> str:
        return str(api.world.users[user]["global_name"] or api.world.users[user]["username"])

    shown = ""
    for one in api.world.messages[channel].values():
        who = name(one["author"]["id"])
        inside = f"<div class=who><b>{who}</b>{'<i>APP</i>' * one['author']['bot']}"
        clock = datetime.fromisoformat(one["timestamp"]).astimezone()
        inside += f"<time>{clock:%H:%M}</time></div><div class=text>{discord_text(one['content'], name)}"
        inside += "<small>(edited)</small></div>" if one["edited_timestamp"] else "</div>"
        inside += "<small>Only you can see this</small>" if one["flags"] & EPHEMERAL else ""
        for file in one["attachments"]:
            data, _ = api.world.files[file["url"].removeprefix(f"{api.cdn_url}/")]
            inside += f"<img src='{inline(data)}'>"
        for row in one["components"]:
            inside += "<br>" + "".join(
                f"<span class=key style='background:{STYLES[key['style']]}'>{html.escape(key['label'])}</span>"
                for key in row["components"]
            )
        reply = ""
        if to := one.get("referenced_message"):
            quoted = re.sub("<[^>]*>", "", discord_text(to["content"].split("\n")[0], name))
            reply = f"<div class=reply><b>{name(to['author']['id'])}</b> {quoted}</div>"
        face = f"<div class=face style='background:{hue(who)}'>{who[0]}</div>"
        shown += f"<div class=one>{reply}{face}<div>{inside}</div></div>"
    return f"<section><h2>{title} <small>{note}</small></h2>{shown}</section>"


async def on_discord(browser: Browser, directory: Path) -> bytes:
    """A channel, and the stranger's chat and Ann's with the bot."""
    async with ModelApi() as model, DiscordApi() as api:
        ann, ben, zoe = api.ann, api.ben, api.world.add_user("zoe")
        for user, name in ((ann, "Ann"), (ben, "Ben"), (zoe, "Zoe"), (api.bot, "Reverie")):
            api.world.users[user]["global_name"] = name
        garden, stranger, owner = api.room, api.world.dm(zoe), api.world.dm(ann)
        settings: Json = {"platform": "discord", "token": api.token, "rooms": [api.guild]}
        settings |= {"api_url": api.api_url, "gateway_url": api.gateway_url}
        gateway = staged(directory, model, settings, ann, ben)
        gateway.config["access"]["tell"] = f"discord.home/{owner}"
        gateway.write()
        async with gateway.inside():
            await api.connected()

            async def says(channel: str, pattern: str) -> None:
                """Return once the bot says it there."""
                await api.until(lambda: bool(re.search(pattern, "\n".join(api.texts(channel)))), WAIT_S)

            async def buttons(channel: str) -> Json:
                """The newest message there with buttons."""
                await api.until(lambda: any(one["components"] for one in api.visible(channel)), WAIT_S)
                found: Json = [one for one in api.visible(channel) if one["components"]][-1]
                return found

            seen = api.says(
                garden, ben, "my tomato", files=[("tomato.png", await picture(browser, PHOTO), "image/png")]
            )
            api.says(garden, ann, f"<@{api.bot}> {WHY}", reply_to=seen)
            await says(garden, "not the leaves")
            api.says(garden, ben, f"<@{api.bot}> {TABLE}")
            await says(garden, "sow again")
            api.says(garden, ann, f"<@{api.bot}> {CODE}")
            await says(garden, "dry.log")
            api.says(stranger, zoe, STRANGER)
            notice = await buttons(owner)
            api.commands.press(owner, ann, notice["id"], notice["components"][0]["components"][0]["custom_id"])
            await says(stranger, "rom now on")
            api.says(stranger, zoe, WELCOME)
            await says(stranger, "rats")
            api.says(garden, ben, f"<@{api.bot}> {SAVE}")
            await buttons(garden)
            shown = discord_chat(api, garden, "# garden", "as Ann sees it") + "<div>"
            shown += discord_chat(api, stranger, "Reverie", "as Zoe sees it, a stranger")
            shown += discord_chat(api, owner, "Reverie", "as Ann sees it, its owner") + "</div>"
    return await picture(browser, shown, DISCORD, 1126)


async def main(names: Sequence[str]) -> None:
    """Take those pictures; all of them if none is named."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, scene in {"irc": on_irc, "telegram": on_telegram, "discord": on_discord}.items():
            if not names or name in names:
                with tempfile.TemporaryDirectory() as directory:
                    keep(name, await scene(browser, Path(directory)))
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
