"""The dashboard in a real Chromium, in front of a real gateway: who may see it, what it shows, and
what it survives.

One browser and one gateway for all of these.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from channels.base import PostPart, Uncertain
from gateway.config.models import Settings
from gateway.core.permissions import ToolRule
from gateway.runtime.agents import STOPPED
from reverie.testing.servers.model_api import Answer
from reverie.testing.waiting import until
from tests.kits.dashboard import (
    ADMIN,
    DISCORD,
    IRC,
    READER,
    TELEGRAM,
    TOKEN,
    House,
    chromium,
    house,
    opened,
    tab,
)

HOSTILE = (
    "<img src=x onerror='window.owned = 1'><script>window.owned = 1</script> {{7*7}} &lt;b&gt;"
)
TURNED = (
    "\u202egnp.exe\u202c \u2066left\u2069 \u200b\u200b\u200b\u200b \u0007bell \U000e0041\U000e0042"
)
OPENED = "#conversations .opened"
LONG = "a very long word" + "w" * 9_984
RESTORED_MS = 30_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("house")) as made:
        made.api.default = lambda _: Answer(
            text="well, well"
        )  # the week's model throws dice, and is silent at times
        made.say("reverie, what is new?", room="#one")
        made.say("just talk", channel=IRC, sender="ann", room="#two")
        yield made


@pytest.fixture(scope="module")
def browser(gateway: House) -> Iterator[Browser]:
    assert gateway.port
    with chromium() as made:
        yield made


def row(page: Page, text: str) -> Locator:
    return page.locator("#live .rows .line").filter(
        has=page.locator(".text", has_text=re.compile(re.escape(text)))
    )


def place(page: Page, conversation: str) -> Locator:
    return page.locator("#conversations .rows .line").filter(
        has=page.locator(f"[title='{conversation}']")
    )


def width(page: Page) -> tuple[int, int]:
    found = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    return int(found[0]), int(found[1])


def test_a_token_is_asked_for_and_a_wrong_one_is_told_where_the_right_one_stands(
    gateway: House, browser: Browser
) -> None:
    with tab(browser) as it:
        it.expected = ("401",)
        page = it.page
        page.goto(gateway.url)
        expect(page.locator("#entry")).to_be_visible()
        expect(page.locator("#main")).to_be_hidden()
        expect(page.locator("#token")).to_be_focused()
        assert "ops.token" in page.locator("#entry").inner_text()
        page.keyboard.type("not the token")
        page.keyboard.press("Enter")
        expect(page.locator("#entry-why")).to_contain_text("without spaces")
        page.locator("#token").fill("a-wrong-token-of-16")
        page.keyboard.press("Enter")
        expect(page.locator("#entry-why")).to_contain_text("refuses this token")
        expect(page.locator("#main")).to_be_hidden()
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#entry")).to_be_hidden()
        expect(page.locator("#waiting")).to_be_visible()


def test_the_token_of_the_address_is_taken_out_of_it_and_kept_for_the_tab(
    gateway: House, browser: Browser
) -> None:
    with tab(browser) as it:
        asked: list[str] = []
        it.page.on("request", lambda one: asked.append(one.url))
        page = it.open(gateway.address)
        assert page.url == gateway.url
        page.reload()
        expect(page.locator("#connection")).to_have_text("live")
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [
            1,
            0,
            "",
        ]
        assert not any("token" in one and "page/" not in one for one in asked[1:]), asked
        page.go_back()  # nothing in the history has it
        assert TOKEN not in page.url


@pytest.mark.system
def test_a_gateway_without_a_token_says_so(tmp_path: Path, browser: Browser) -> None:
    made = House(tmp_path, token=None)
    try:
        made.begin()
        with tab(browser) as it:
            it.expected = ("403",)
            it.page.goto(made.address)
            expect(it.page.locator("#entry-why")).to_contain_text("ops.token")
            expect(it.page.locator("#main")).to_be_hidden()
    finally:
        made.close()


def test_what_comes_in_is_seen_with_its_fate(gateway: House, browser: Browser) -> None:
    with tab(browser) as it:
        page = it.open(gateway.address, "live")
        gateway.say("hello over there", sender="zoe")
        mine = row(page, "hello over there")
        expect(mine.locator(".place")).to_have_text("zoe")
        expect(mine.locator(".who")).to_have_text("zoe")
        expect(mine.locator(".urgency")).to_have_text("urgent")
        expect(mine.locator(".state .chip")).to_have_text(
            re.compile("answered|silent|yielded|failed")
        )
        assert page.locator("#live .rows .text").first.inner_text() == "hello over there"
        mine.click()
        opened = page.locator("#live .unfolded")
        expect(opened).to_contain_text("telegram.main.direct")
        told = gateway.ask("/api/notifications", limit=1)["items"][0]
        expect(opened).to_contain_text(told["rule"])
        local = mine.locator("time").first
        assert re.fullmatch(r"\d\d:\d\d:\d\d", local.inner_text())
        assert (local.get_attribute("title") or "").endswith("UTC")
        opened.locator("a").click()
        expect(page.locator(OPENED).locator("h3")).to_have_text("zoe")
        expect(page.locator("#conversations .rows .place").first).to_have_text("zoe")
        it.show("turns")
        expect(page.locator("#turns .rows .line").first).to_contain_text("zoe")


def test_hostile_texts_are_texts(gateway: House, browser: Browser) -> None:
    with tab(browser, viewport={"width": 360, "height": 740}) as it:
        page = it.open(gateway.address, "live")
        for text in (HOSTILE, TURNED, LONG):
            gateway.say(text, sender="<b>mallory</b>", room="#one")
        expect(row(page, "w" * 100)).to_be_visible()
        first = page.locator("#live .rows .line").filter(has_text="window.owned").first
        assert first.locator(".text").evaluate("one => one.textContent") == HOSTILE
        turned = page.locator("#live .rows .text").filter(has_text="U+202E").first
        assert "U+202E" in turned.inner_text()
        assert "U+200B×4" in turned.inner_text()
        assert not re.search(
            "[\u202a-\u202e\u2066-\u2069\u200b\U000e0041]",
            turned.evaluate("one => one.textContent"),
        )
        page.locator("#live .rows .line").first.click()
        told = gateway.ask("/api/notifications", limit=1)["items"][0]["text"]
        assert told == LONG  # an event tells its beginning only; what is folded out is the whole
        expect(page.locator(".unfolded pre")).to_have_text(LONG)
        it.show("conversations")
        place(page, "telegram.main/#one").click()
        expect(page.locator(f"{OPENED} .words", has_text="w" * 100)).to_be_visible()
        assert page.evaluate("window.owned") is None
        assert page.locator("main img, main script, main iframe, main b:has(b)").count() == 0
        wide, screen = width(page)
        assert wide <= screen


def test_the_stream_is_filtered(gateway: House, browser: Browser) -> None:
    with opened(browser, gateway, "live") as page:
        gateway.say("a needle in it", channel=IRC, sender="ann", room="#one")
        gateway.say("hay", channel=DISCORD, sender="ben", room="#one")
        expect(row(page, "hay")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("NEEDLE")
        expect(row(page, "hay")).to_be_hidden()
        expect(row(page, "a needle")).to_be_visible()
        expect(page.locator("#live > header")).to_contain_text(" of ")
        words = page.locator("#live input")
        words.fill("")
        expect(row(page, "hay")).to_be_visible()
        page.get_by_label("Channel", exact=True).select_option("discord.main")
        expect(row(page, "a needle")).to_be_hidden()
        words.fill("irc.libera/#one")
        expect(page.locator("#live .empty")).to_contain_text("Nothing matches the filter")
        page.get_by_label("Channel", exact=True).select_option("")
        expect(row(page, "a needle")).to_be_visible()
        words.fill("")


def test_everything_is_reached_by_keys(gateway: House, browser: Browser) -> None:
    with opened(browser, gateway) as page:
        page.keyboard.press("Tab")
        expect(page.locator("#skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        page.keyboard.press("?")
        expect(page.locator("#help")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#help")).to_be_hidden()
        page.keyboard.press("3")
        expect(page.locator("#conversations-h")).to_be_focused()
        expect(page.locator("#conversations .rows .line").first).to_be_visible()
        for _ in range(2):
            page.keyboard.press("Tab")
        places = page.locator("#conversations .rows")
        expect(places).to_be_focused()
        page.keyboard.press("ArrowDown")
        second = places.locator("[aria-selected=true]")
        expect(second).to_have_attribute("aria-posinset", "2")
        name = second.locator(".place").inner_text()
        page.keyboard.press("Enter")
        expect(page.locator(OPENED).locator("h3")).to_have_text(name)
        expect(page.locator(OPENED).locator("h3")).to_be_focused()
        page.keyboard.press(":")
        expect(page.locator(OPENED).locator("textarea")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator(OPENED)).to_contain_text("Choose a conversation")
        expect(places).to_be_focused()
        expect(second.locator(".place")).to_have_text(name)
        page.keyboard.press("4")
        expect(page.locator("#live-h")).to_be_focused()
        while page.evaluate("!document.activeElement.matches('#live .rows')"):
            page.keyboard.press("Tab")
            assert page.evaluate(OUTLINED), page.evaluate("document.activeElement.outerHTML")
        page.keyboard.press("End")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        active = page.locator("#live [aria-selected=true]")
        expect(active).to_be_in_viewport()
        expect(page.locator("#live .unfolded pre")).to_have_text(
            active.locator(".text").inner_text()
        )
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        expect(page.locator("#live .unfolded")).to_have_count(0)
        assert page.evaluate("document.activeElement.matches('#live .rows')")
        page.keyboard.press("8")
        slider = page.get_by_label("Time of the costs")
        expect(page.locator("#costs .told")).not_to_be_empty()
        slider.focus()
        page.keyboard.press("Home")
        expect(page.locator("#costs .told")).to_contain_text(f"{TELEGRAM} $0")
        page.keyboard.press("End")
        expect(slider).to_have_attribute(
            "aria-valuetext", re.compile(r"\d\d:\d\d–\d\d:\d\d: .*\$0\.\d*[1-9]")
        )


OUTLINED = """(() => {
  const style = getComputedStyle(document.activeElement);
  return document.activeElement === document.body || style.outlineStyle === "solid";
})()"""
ADDED = """async () => {
  const { Rows } = await import("/page/rows.js");
  const rows = new Rows({ label: "Many", columns: [["n", "text", (one) => `row ${one.seq}`]], details: () => "more" });
  Object.assign(rows.root.style, { height: "600px", flex: "none" });
  rows.root.id = "many";
  document.querySelector("#plugins").append(rows.root);
  window.many = Array.from({ length: 10_000 }, (_, index) => ({ seq: 10_000 - index }));
  rows.set(window.many);
  window.rows = rows;
}"""


def test_a_long_list_has_only_what_is_in_sight_in_the_document(
    gateway: House, browser: Browser
) -> None:
    with opened(browser, gateway, "plugins") as page:
        expect(page.get_by_role("table", name="Plugins")).to_be_visible()
        page.evaluate(ADDED)
        many = page.locator("#many .rows")
        expect(many.locator(".line").first).to_have_text("row 10000")
        many.focus()
        page.keyboard.press("End")
        active = many.locator("[aria-selected=true]")
        expect(active).to_have_text("row 1")
        assert many.locator(".line").count() < 60
        expect(active).to_have_attribute("aria-posinset", "10000")
        page.keyboard.press("PageUp")
        expect(active).to_have_text("row 11")
        page.evaluate("rows.set([{ seq: 10_001 }, ...many])")
        expect(active).to_have_text("row 11")
        expect(active).to_be_in_viewport()


AXE = Path(__file__).parents[4] / ".venv/npm/node_modules/axe-core/axe.min.js"
VIEWS = [
    "waiting",
    "talk",
    "conversations",
    "live",
    "search",
    "agent",
    "turns",
    "costs",
    "channels",
    "audit",
    "warnings",
    "plugins",
]


BEYOND = """() => {
  const right = (one) => {
    let found = one.getBoundingClientRect().right;
    for (let above = one.parentElement; above; above = above.parentElement)
      if (getComputedStyle(above).overflowX !== "visible") found = Math.min(found, above.getBoundingClientRect().right);
    return found;
  };
  const seen = [...document.querySelectorAll("main *")].filter((one) => one.checkVisibility() && !one.closest("svg"));
  return seen.filter((one) => right(one) > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80));
}"""
BELOW_THE_FIELD = """(() => {
  const bottom = (name) => document.querySelector(`#talk ${name}`).getBoundingClientRect().bottom;
  return bottom(".opened") - bottom(".reply");
})()"""
SMALL = """() => [...document.querySelectorAll("button, select, input")]
  .filter((one) => one.checkVisibility() && !one.closest(".legend, .exact"))
  .filter((one) => one.getBoundingClientRect().height < 24)
  .map((one) => one.id || one.className)"""


def check_accessible(page: Page) -> None:
    """By axe-core, where it is installed: contrast, names, roles, and what can be reached
    (https://github.com/dequelabs/axe-core)."""
    if not AXE.exists():
        return
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    assert found == [], [(one["id"], one["nodes"][0]["html"]) for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_view_is_accessible(gateway: House, browser: Browser, scheme: str) -> None:
    """And none is wider than the screen of a small computer."""
    with tab(browser, color_scheme=scheme, bypass_csp=True) as it:
        page = it.open(gateway.address)
        for view in VIEWS:
            it.show(view)
            if view in ("live", "turns"):
                page.locator(f"#{view} .rows .line").first.click()
            elif view == "conversations":
                page.locator("#conversations .rows .line").first.click()
                expect(page.locator(f"{OPENED} .bubble").first).to_be_visible()
            check_accessible(page)
            for pixels in (1024, 1280):
                page.set_viewport_size({"width": pixels, "height": 768})
                wide, screen = width(page)
                assert wide <= screen, (view, pixels)


def test_themes_follow_the_system_or_the_person(gateway: House, browser: Browser) -> None:
    with opened(browser, gateway, color_scheme="dark") as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(ground)
        page.locator("#theme").click()
        light = page.evaluate(ground)
        assert light != dark
        page.keyboard.press("t")
        assert page.evaluate(ground) == dark
        page.keyboard.press("t")
        page.keyboard.press("t")
        page.reload()
        expect(page.locator("#theme")).to_contain_text("light")
        assert page.evaluate(ground) == light


def test_a_narrow_screen_has_all_of_it(gateway: House, browser: Browser) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
    with tab(browser, bypass_csp=True, **phone) as it:
        page = it.open(gateway.address)
        for view in VIEWS:
            it.show(view)
            expect(page.locator("#nav")).to_be_hidden()
            wide, screen = width(page)
            assert wide <= screen, view
            assert page.evaluate(BEYOND) == [], view
            assert page.evaluate(SMALL) == [], view
            check_accessible(page)
        it.show("talk")
        assert page.evaluate(BELOW_THE_FIELD) < 3
        it.show("conversations")
        places = page.locator("#conversations .rows")
        places.locator(".line").first.click()
        expect(page.locator(f"{OPENED} .talk")).to_be_visible()
        expect(places).to_be_hidden()
        assert page.evaluate(BEYOND) == []
        page.get_by_label("Close this conversation").click()
        expect(places).to_be_visible()


def test_a_conversation_shows_its_words_and_the_exact_blocks_of_its_last_prompt(
    gateway: House, browser: Browser
) -> None:
    gateway.say("reverie,   keep\n\tthis <white>  space  ", room="#three")
    with tab(browser) as it:
        page = it.open(gateway.address)
        conversation = "telegram.main/#three"
        it.show("conversations")
        place(page, conversation).click()
        expect(page.locator(f"{OPENED} .bubble").first).to_be_visible()
        expect(page.locator(f"{OPENED} .blocks")).to_be_visible()
        expect(page.locator(f"{OPENED} .bill")).to_be_visible()
        expect(page.locator(f"{OPENED} .words")).to_have_count(2)  # the line and its answer
        told: dict[str, Any] = gateway.ask("/api/conversation", id=conversation)
        blocks = told["prompt"]["blocks"]
        shown = page.locator(f"{OPENED} .blocks details")
        assert shown.count() == len(blocks)
        for index, block in enumerate(blocks):
            one = shown.nth(index)
            assert one.locator("pre").count() == 0
            one.locator("summary").click()
            assert one.locator("pre").evaluate("one => one.textContent") == block["text"]
            assert one.locator(".name").inner_text() == block["name"]
            assert one.locator(".life").inner_text() == (block["lifetime"] or "–")
            assert ("◆" in one.locator("summary").inner_text()) == block["marked"]
        assert any("this <white>  space" in block["text"] for block in blocks)
        assert (
            page.locator(".last-prompt p")
            .first.inner_text()
            .count(f"{told['prompt']['marks']} mark")
            == 1
        )
        said = page.locator(f"{OPENED} .words").all_text_contents()
        assert said == [one["text"] for one in told["messages"]]
        opened = page.locator(f"{OPENED} .blocks details[open]").count()
        gateway.say("and more", room="#three")
        expect(page.locator(f"{OPENED} .words").filter(has_text="and more")).to_have_count(1)
        assert (
            page.locator(f"{OPENED} .blocks details[open]").count() == opened
        )  # nothing folds up under the reader


def test_the_operator_answers_in_a_conversation_and_talks_with_the_agent(
    gateway: House, browser: Browser
) -> None:
    with tab(browser) as it:
        page = it.open(f"{gateway.address}")
        gateway.say("just talk", channel=IRC, sender="ann", room="#two")
        page.goto(f"{gateway.url}#conversations/{IRC}%2F%23two")
        expect(page.locator(f"{OPENED} h3")).to_have_text("#two")
        page.locator(f"{OPENED} textarea").fill("I am here <b>now</b>")
        page.keyboard.press("Enter")
        expect(page.locator("#told .good")).to_contain_text("#two")
        expect(page.locator(f"{OPENED} .ours .words").last).to_have_text("I am here <b>now</b>")
        assert [one.body for one in gateway.shown if one.to.room == "#two"][-1].startswith("I am")
        page.get_by_role("button", name="Start over").click()
        expect(page.locator("dialog.ask")).to_be_visible()
        expect(page.get_by_role("button", name="Back")).to_be_focused()
        page.keyboard.press("Enter")
        assert "new" not in {one["command"] for one in gateway.ask("/api/audit")["items"]}
        page.locator(f"{OPENED} textarea").press_sequentially("/why")
        expect(page.locator(f"{OPENED} .hints")).to_contain_text("why")
        page.keyboard.press("Tab")
        expect(page.locator(f"{OPENED} textarea")).to_have_value("/why ")
        page.keyboard.press("Enter")
        expect(page.locator("#told .good")).not_to_be_empty()
        expect(page.locator(f"{OPENED} .hints")).to_be_empty()
        page.keyboard.press("Escape")
        expect(page.locator("#told")).to_be_empty()
        expect(page.locator(f"{OPENED} h3")).to_have_text("#two")  # which is not closed with it
        it.show("audit")
        expect(page.locator("#audit .rows .line").first).to_contain_text("why")
        it.show("talk")
        page.locator("#talk textarea").fill("are you there?")
        page.keyboard.press("Enter")
        expect(page.locator("#talk .bubble .words").first).to_have_text("are you there?")
        expect(page.locator("#talk .bubble")).to_have_count(2)  # and the answer


def test_a_stranger_is_let_in_by_a_button(tmp_path: Path, browser: Browser) -> None:
    def ask_first(made: Settings) -> Settings:
        access = made.access.model_copy(update={"dm": "pairing"})
        return made.model_copy(update={"access": access})

    with house(tmp_path, ask_first) as made, tab(browser) as it:
        page = it.open(made.address)
        expect(page.locator("#waiting")).to_contain_text("Nothing waits for you")
        made.say("<i>may I ask you something?</i>", sender="nuffe")
        card = page.locator("#waiting .card")
        expect(card).to_contain_text("nuffe")
        expect(card.locator("blockquote")).to_have_text("<i>may I ask you something?</i>")
        expect(page.locator("#nav .count")).to_have_text("1")
        card.get_by_role("button").first.click()
        expect(page.locator("#told .good")).to_contain_text("nuffe")
        expect(card).to_have_count(0)
        expect(page.locator("#nav .count")).to_be_hidden()
        made.say("so?", sender="nuffe")
        it.show("conversations")
        place(page, "telegram.main/nuffe").click()
        expect(page.locator(f"{OPENED} .bubble", has_text="so?")).to_contain_text("answered")


COMMAND = "echo *all* **is** _kept_ # shown"


def test_a_call_waits_as_it_is_written_and_memory_is_changed(
    tmp_path: Path, browser: Browser
) -> None:
    """Of a room, by keys; both are accessible, and no token gives more than its role."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    file = workspace / "MEMORY.md"
    file.write_text("- Ann likes *tea*\n- Ben likes coffee\n", encoding="utf-8")

    def ask_always(made: Settings) -> Settings:
        rule = ToolRule(tool="remember", approval="always")
        tools = made.tools.model_copy(update={"rules": (rule, *made.tools.rules)})
        agent = made.agents[0].model_copy(update={"workspace": workspace})
        roles = made.access.roles.model_copy(update={"owner": ("telegram.main:olga",)})
        access = made.access.model_copy(update={"roles": roles})
        return made.model_copy(update={"tools": tools, "agents": (agent,), "access": access})

    def prompt(word: str) -> str:
        made.say(word, sender="olga")
        made.run(until(lambda: word in str(made.api.seen[-1].body)))
        return str(made.api.seen[-1].body)

    with house(tmp_path, ask_always) as made, tab(browser, bypass_csp=True) as it:
        made.api.default = lambda _: Answer(text="well, well")
        page = it.open(f"{made.url}#token={ADMIN}")
        card = page.locator("#waiting .card", has_text="tool call")
        for name, times in (("Deny", 2), ("Approve", 1)):
            call = (name, "remember", json.dumps({"text": COMMAND}))
            made.api.then(Answer(calls=(call,)))
            made.say(f"reverie, {name} this", sender="gus", room="#one")
            expect(card.locator("blockquote pre")).to_have_text(json.dumps({"text": COMMAND}))
            expect(card).to_contain_text("#one")
            check_accessible(page)
            with tab(browser) as other:
                reading = other.open(f"{made.url}#token={READER}").locator("#waiting")
                expect(reading.locator(".card")).to_have_count(1)
                expect(reading.get_by_role("button")).to_have_count(0)
            page.locator("#waiting-h").focus()
            for _ in range(times):
                page.keyboard.press("Tab")
            expect(card.get_by_role("button", name=name)).to_be_focused()
            page.keyboard.press("Enter")
            expect(page.locator("#told .good")).to_contain_text(name.rstrip("ye"))
            expect(card).to_have_count(0)
            expect(page.locator("#waiting .spin")).to_have_count(0)
        acts = [(one["actor"], one["command"]) for one in made.ask("/api/audit")["items"]]
        assert acts == [("operator (ben)", "approve"), ("operator (ben)", "deny")]
        (note,) = made.ask("/api/plugins/memory/journal")
        assert note["note"] == COMMAND
        assert "Ben likes coffee" in prompt("good morning, zebra")
        it.show("agent")
        rows = page.locator(
            "section.panel", has=page.get_by_role("heading", name="Memory")
        ).locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.get_by_role("button")).to_have_count(0)
        it.open(made.address, "agent")
        rows.first.get_by_role("button", name="Edit").click()
        text = page.locator("dialog textarea")
        expect(text).to_be_focused()
        expect(text).to_have_value("- Ann likes *tea*")
        check_accessible(page)
        page.keyboard.press("Escape")
        expect(rows.first.get_by_role("button", name="Edit")).to_be_focused()
        page.keyboard.press("Enter")
        text.fill("- Ann likes mate")
        page.get_by_role("button", name="Save").click()
        expect(rows.first).to_contain_text("Ann likes mate")
        rows.nth(1).get_by_role("button", name="Forget").click()
        expect(page.locator("dialog.ask h2")).to_contain_text("Ben likes coffee")
        page.locator("dialog .strong").click()
        expect(rows).to_have_count(1)
        assert file.read_text(encoding="utf-8") == "- Ann likes mate\n"
        told = prompt("good evening, okapi")
        assert "Ann likes mate" in told
        assert "coffee" not in told


def test_a_long_line_of_a_table_is_read_in_time_that_grows_with_it(
    gateway: House, browser: Browser
) -> None:
    with opened(browser, gateway) as page:
        lines = page.evaluate(
            """async () => {
              const { markdown } = await import("/page/markdown.js");
              return markdown(`|\n${"-".repeat(500_000)}x`).length;
            }"""
        )
        assert lines == 1


def test_the_whole_log_is_searched(gateway: House, browser: Browser) -> None:
    gateway.say("the lighthouse keeper sleeps", room="#two")
    with tab(browser) as it:
        page = it.open(gateway.address, "search")
        page.keyboard.press("/")
        page.keyboard.type("lighthouse")
        page.keyboard.press("Enter")
        found = page.locator("#search .rows .line")
        expect(found).to_have_count(1)
        found.click()
        page.locator("#search .unfolded a").click()
        expect(page.locator(f"{OPENED} h3")).to_have_text("#two")
        it.show("search")
        page.locator("#search input").fill("nobodysaidthis")
        page.keyboard.press("Enter")
        expect(page.locator("#search .empty")).to_contain_text("Nothing was found")


WRITTEN = """\
channels:
  telegram.main: {platform: console, rooms: ["#one"]}
agents:
  - id: reverie
llm:
  providers:
    s: {kind: scripted}
  models:
    main: {provider: s}
access:
  dm: open
"""


def test_the_configuration_is_checked_beside_its_lines_and_saved(
    tmp_path: Path, browser: Browser
) -> None:
    made = House(tmp_path)
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    ops = json.dumps({"port": made.port, "token": "${file:token}"})
    made.written = f"{WRITTEN}ops: {ops}\n"
    try:
        made.begin()
        with tab(browser, bypass_csp=True) as it:
            page = it.open(made.address, "config")
            text, review = (
                page.locator("#config textarea"),
                page.get_by_role("button", name="Review"),
            )
            expect(text).to_have_value(re.compile("dm: open"))
            shown = text.input_value()
            assert TOKEN not in shown
            text.fill(shown.replace("dm: open", "dm: opn"))
            expect(page.locator("#config .problems")).to_contain_text("access.dm")
            expect(page.locator("#config .numbers .bad")).to_have_text("11")
            check_accessible(page)
            review.click()
            expect(page.locator("#told .bad")).not_to_be_empty()
            page.get_by_role("button", name="Undo all").click()
            expect(text).to_have_value(shown)
            expect(page.locator("#config .problems .good")).to_be_visible()
            text.fill(shown.replace("dm: open", "dm: pairing"))
            expect(page.locator("#config .problems .good")).to_be_visible()
            review.click()
            expect(page.locator("dialog .ins")).to_contain_text("dm: pairing")
            check_accessible(page)
            page.locator("dialog .strong").click()
            expect(page.locator("#told .good")).to_be_visible()
        expected = made.written.replace("dm: open", "dm: pairing")
        assert (tmp_path / "reverie.yaml").read_text(encoding="utf-8") == expected
    finally:
        made.close()


def test_an_agent_is_directed_by_buttons(gateway: House, browser: Browser) -> None:
    with opened(browser, gateway, "agent") as page:
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.locator("#agent .mode")).to_have_text("paused")
        expect(page.locator("#told .good")).to_contain_text("paused")
        page.get_by_role("button", name="Wake up").click()
        expect(page.locator("#agent .mode")).not_to_have_text("paused")


def test_models_are_chosen_and_a_turn_is_stopped_by_buttons(
    tmp_path: Path, browser: Browser
) -> None:
    def two_models(made: Settings) -> Settings:
        main = made.llm.models["main"]
        models = {"main": main, "small": main.model_copy(update={"name": "claude-haiku-4-5"})}
        return made.model_copy(update={"llm": made.llm.model_copy(update={"models": models})})

    with house(tmp_path, two_models) as made, tab(browser) as it:
        made.api.default = lambda _: Answer(text="well, well")
        page = it.open(made.address, "agent")
        page.get_by_label("Model of reverie").select_option("small")
        page.get_by_role("button", name="Use this model").click()
        expect(page.locator("#told .good")).to_contain_text("small")
        models = {one["name"]: one["agents"] for one in made.ask("/api/models")["items"]}
        assert models == {"main": [], "small": ["reverie"]}
        made.say("reverie, are you there?", channel=IRC, sender="ann", room="#one")
        it.show("conversations")
        place(page, f"{IRC}/#one").click()
        expect(page.locator(f"{OPENED} .ours")).to_have_count(1)
        assert made.ask("/api/turns")["items"][0]["model"] == "claude-haiku-4-5"

        page.get_by_label("Model of this room").select_option("main")
        page.get_by_role("button", name="Use this model here").click()
        expect(page.locator("#told .good")).to_contain_text("main")
        long = "one two three four five six seven eight"
        made.api.default = lambda _: Answer(text=long, silent_after=6)
        made.say("reverie, count to a million", channel=IRC, sender="ann", room="#one")
        now = page.locator(f"{OPENED} .now")
        expect(now.locator(".tail")).to_contain_text("one two")
        now.get_by_role("button", name="Stop").click()
        expect(now.locator(".spin")).to_have_count(0)
        expect(page.locator(f"{OPENED} .ours")).to_have_count(1)
        told = [one.body for one in made.shown if one.to.room == "#one"]
        assert [STOPPED in one for one in told] == [False, True]
        acts = [(one["command"], one["arguments"]) for one in made.ask("/api/audit")["items"]]
        assert acts == [("stop", ""), ("model", "here main"), ("model", "switch small")]
        asked = next(one for one in made.api.seen if "million" in str(one.body))
        assert asked.body["model"] == "claude-sonnet-5-5"
        assert made.ask("/api/status")["activity"] == []


def test_a_token_that_may_only_read_is_shown_no_acts(gateway: House, browser: Browser) -> None:
    with tab(browser) as it:
        page = it.open(f"{gateway.url}#token={READER}")
        expect(page.locator("#nav a[href='#config']")).to_be_hidden()
        for view in VIEWS:
            it.show(view)
            expect(page.locator(f"#{view} h2").first).to_be_visible()
        it.show("conversations")
        place(page, "telegram.main/#one").click()
        expect(page.locator(f"{OPENED} .bubble").first).to_be_visible()
        expect(page.locator("main .acts button, main .reply")).to_have_count(0)


def test_a_list_that_comes_late_does_not_change_the_view(gateway: House, browser: Browser) -> None:
    with tab(browser) as it:
        page = it.open(gateway.address)
        held = list[Route]()
        page.route("**/api/conversations*", lambda one: held.append(one))  # noqa: PLW0108 - Playwright marks what it is given
        with page.expect_request("**/api/conversations*"):
            it.show("conversations")
        it.show("live")
        with page.expect_response("**/api/conversations*"):
            held[0].continue_()
        page.evaluate("new Promise((done) => setTimeout(done, 0))")
        expect(page.locator("#conversations > header .quiet")).not_to_be_empty()
        expect(page.locator("#live")).to_be_visible()


def test_a_conversation_whose_load_failed_is_loaded_again(gateway: House, browser: Browser) -> None:
    gateway.say("the first line", room="#four")
    with tab(browser) as it:
        it.expected = ("ERR_FAILED",)
        page = it.open(gateway.address)
        it.show("conversations")
        place(page, "telegram.main/#four").click()
        expect(page.locator(f"{OPENED} .words")).to_have_count(1)
        page.route("**/api/conversation?*", lambda route: route.abort(), times=1)
        with page.expect_event("requestfailed"):
            gateway.say("just talk", room="#four")
        expect(page.locator(f"{OPENED} .words").filter(has_text="just talk")).to_have_count(1)


@pytest.mark.system
def test_what_nobody_knows_the_end_of_stands_out(gateway: House, browser: Browser) -> None:
    def lost(_: PostPart) -> None:
        raise Uncertain("the line was cut behind it")

    with tab(browser) as it:
        page = it.open(gateway.address)
        expect(page.locator("#alerts")).not_to_contain_text("uncertain")
        gateway.show = lost
        try:
            gateway.say("!help", sender="uma")
            expect(page.locator("#alerts")).to_contain_text("1 delivery is uncertain")
        finally:
            gateway.show = lambda _: None
        it.show("channels")
        first = page.get_by_role("table", name="Deliveries").locator("tbody tr").first
        expect(first).to_have_class("bad")
        expect(first).to_contain_text("uma")
        expect(first).to_contain_text("cut")
        it.show("waiting")
        page.locator("#alerts a", has_text="uncertain").click()
        expect(page.get_by_role("table", name="Deliveries")).to_be_visible()


@pytest.mark.system
def test_a_channel_that_breaks_is_seen_at_once(gateway: House, browser: Browser) -> None:
    with opened(browser, gateway, "channels") as page:
        mine = page.locator("#channels tr", has_text="discord.main")
        expect(mine.locator(".chip")).to_have_text("up")
        gateway.run(gateway.towns[DISCORD].link(up=False, reason="closed: \u202e<b>4004</b>"))
        expect(mine.locator(".chip")).to_have_text("down")
        expect(mine).to_contain_text("closed: U+202E<b>4004</b>")
        expect(page.locator("#ready")).to_have_text("not ready")
        expect(page.locator("#alerts")).to_contain_text("discord.main")
        gateway.run(gateway.towns[DISCORD].link(up=True))
        expect(mine.locator(".chip")).to_have_text("up")
        expect(page.locator("#ready")).to_have_text("ready")
        expect(page.locator("#alerts")).not_to_contain_text("discord.main")


@pytest.mark.system
def test_a_restart_in_the_middle_loses_nothing_and_doubles_nothing(
    gateway: House, browser: Browser
) -> None:
    with tab(browser) as it:
        it.expected = (
            "ERR_CONNECTION_REFUSED",
            "ERR_INCOMPLETE_CHUNKED",
            "ERR_CONNECTION_RESET",
            "ERR_EMPTY",
        )
        page = it.open(gateway.address, "live")
        gateway.say("before it", channel=IRC, sender="ann", room="#one")
        expect(row(page, "before it")).to_have_count(1)
        gateway.end()
        expect(page.locator("#connection")).to_contain_text("reconnecting")
        expect(page.locator("#ready")).to_be_hidden()
        gateway.begin()
        gateway.say("while nobody looked", channel=IRC, sender="ann", room="#one")
        expect(page.locator("#connection")).to_have_text("live", timeout=RESTORED_MS)
        gateway.say("after it", channel=IRC, sender="ann", room="#one")
        for text in ("before it", "while nobody looked", "after it"):
            expect(row(page, text)).to_have_count(1)
        it.show("channels")
        expect(page.locator("#channels .chip").first).to_have_text("up")


@pytest.mark.system
def test_a_token_that_is_changed_brings_the_form_back(gateway: House, browser: Browser) -> None:
    with tab(browser) as it:
        it.expected = ("401", "ERR_")
        page = it.open(gateway.address)
        gateway.end()
        gateway.token = "another-token-of-tests"
        try:
            gateway.begin()
            expect(page.locator("#entry-why")).to_contain_text(
                "refuses this token", timeout=RESTORED_MS
            )
            page.locator("#token").fill(gateway.token)
            page.keyboard.press("Enter")
            expect(page.locator("#connection")).to_have_text("live")
        finally:
            gateway.end()
            gateway.token = TOKEN
            gateway.begin()


EVENTS = (
    'retry: 2000\n\n: nothing\n\nid: 7\nevent: fate\ndata: {"a": "ä: b\u2028c"}\n\ndata: last\n\n'
)


CASES = {
    "plain\n\ttext  ": "plain\n\ttext  ",
    "a\u202eb": "aU+202Eb",
    "\u200b" * 12 + "x": "U+200B×12x",
    "\x00\x1b[31m\r\x85": "U+0000U+001B[31mU+000DU+0085",
    "👩\u200d👩\u200d👧 ❤\ufe0f 👍🏽": "👩\u200d👩\u200d👧 ❤\ufe0f 👍🏽",
    "نامه\u200cای क्\u200dष": "نامه\u200cای क्\u200dष",
    "a\u200db \u200d": "a\u200db U+200D",
    "\ud800": "U+D800",
    "": "",
}
READ = """async ([text, size]) => {
  const { parse } = await import("/page/events.js");
  const found = [];
  let rest = "";
  for (let at = 0; at < text.length; at += size) {
    const parsed = parse(rest + text.slice(at, at + size));
    found.push(...parsed.events);
    rest = parsed.rest;
  }
  return found;
}"""
SAID = """async (codes) => {
  const { said } = await import("/page/dom.js");
  return said(String.fromCharCode(...codes)).textContent;
}"""


LOADED = """async () => {
  const { Live } = await import("/page/lists.js");
  const live = new Live();
  const note = (seq) => ({ seq, at: "2026-03-04T05:06:07Z", type: "t", kind: "room", conversation: "a/b", who: "ann",
    text: `line ${seq}`, urgency: 1, fate: "unread", rule: "r" });
  let answer;
  window.fetch = () => new Promise((done) => (answer = done));
  const loading = live.load();
  live.take(note(9));
  answer(new Response(JSON.stringify({ items: [note(5)], next: null })));
  await loading;
  const again = live.load();
  answer(new Response(JSON.stringify({ items: [{ ...note(5), fate: "answered" }], next: null })));
  await again;
  return live.sorted.map((note) => [note.seq, note.fate]);
}"""


def test_what_comes_while_the_log_is_read_is_kept(gateway: House, browser: Browser) -> None:
    with tab(browser) as it:
        it.page.goto(gateway.url)
        assert it.page.evaluate(LOADED) == [[9, "unread"], [5, "answered"]]


def test_events_are_read_however_they_are_cut_and_what_nobody_sees_is_named(
    gateway: House, browser: Browser
) -> None:
    with tab(browser) as it:
        it.page.goto(gateway.url)
        for size in (1, 2, 3, 7, 1_000):
            found = it.page.evaluate(READ, [EVENTS, size])
            assert found == [
                {"id": "7", "event": "fate", "data": '{"a": "ä: b\u2028c"}'},
                {"data": "last"},
            ]
        for text, shown in CASES.items():
            assert (
                it.page.evaluate(SAID, [int.from_bytes(pair, "little") for pair in _pairs(text)])
                == shown
            )


def _pairs(text: str) -> Iterator[bytes]:
    data = text.encode("utf-16-le", "surrogatepass")
    yield from (data[at : at + 2] for at in range(0, len(data), 2))
