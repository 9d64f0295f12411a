"""The dashboard on a simulated day: every panel shows what the API says, and stays small however much comes."""

import json
import re
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.bench.bench_dashboard import measured, traffic
from tests.kits.dashboard import IRC, House, Tab, chromium, house, tab

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("day"), days=1.0) as made:
        yield made


@pytest.fixture(scope="module")
def browser(gateway: House) -> Iterator[Browser]:
    assert gateway.port
    with chromium() as made:
        yield made


@pytest.fixture
def opened(gateway: House, browser: Browser) -> Iterator[Tab]:
    with tab(browser, timezone_id="UTC") as made:
        made.open(gateway.address)
        yield made


def texts(page: Page, where: str) -> list[str]:
    return [re.sub(r"\s+", " ", one).strip() for one in page.locator(where).all_text_contents()]


def shown_tokens(count: int) -> str:
    """As the page writes it: JavaScript rounds a half up, where Python's formatting takes the even digit."""
    if count < 1_000:
        return str(count)
    size, unit = (1_000, "k") if count < 999_500 else (1_000_000, "M")
    value = Decimal(count / size)
    step = Decimal("0.01" if value < 10 else "0.1" if value < 100 else "1")
    return f"{value.quantize(step, ROUND_HALF_UP)}{unit}"


def test_the_header_and_the_day_so_far(gateway: House, opened: Tab) -> None:
    told = gateway.ask("/api/status")
    page = opened.page
    assert page.locator("#version").inner_text() == told["version"]
    assert page.locator("#model").inner_text() == told["model"]
    expect(page.locator("#ready")).to_have_text("ready")
    figures = dict(zip(texts(page, ".figure .what"), texts(page, ".figure .value"), strict=True))
    today = told["today"]
    assert figures["requests"] == str(today["requests"])
    assert figures["written to cache"] == shown_tokens(today["written_tokens"])
    assert figures["answered"] == shown_tokens(today["output_tokens"])
    assert figures["turns on its own"] == str(told["agents"][0]["turns_today"])
    share = today["read_share"]
    store = told["store"]
    size = f"{store['size_bytes'] / 1e6:.{2 if store['size_bytes'] < 10e6 else 1}f} MB"
    assert figures[f"store, +{store['bytes_per_day'] / 1e6:.2f} MB a day"] == size
    end = f"full on {store['full_on']}" if store["full_on"] else "lasts for years"
    assert f"disk {end}" in texts(page, ".figure .more")
    assert figures["read from cache"] == ("–" if share is None else f"{share * 100:.0f} %")


def test_the_stream_has_the_newest_notifications_with_fates_and_rules(gateway: House, opened: Tab) -> None:
    told = gateway.ask("/api/notifications", limit=200)["notifications"]
    page = opened.page
    assert texts(page, "#stream .fate") == [one["fate"] for one in told]
    assert texts(page, "#stream .who") == [one["who"] for one in told]
    assert page.locator("#stream time").evaluate_all("all => all.map((one) => one.dateTime)")[:200] == [
        one["at"] for one in told
    ]
    assert page.locator("#stream .fate").evaluate_all("all => all.map((one) => one.title)") == [
        f"rule: {one['rule']}" for one in told
    ]
    page.locator("#stream button.more").click()
    older = gateway.ask("/api/notifications", limit=100, before=told[-1]["seq"])["notifications"]
    expect(page.locator("#stream summary")).to_have_count(300)
    assert texts(page, "#stream .who")[200:] == [one["who"] for one in older]


def test_channels_agents_and_their_day(gateway: House, opened: Tab) -> None:
    page = opened.page
    for one in gateway.ask("/api/channels")["channels"]:
        mine = page.locator(f"#channels [data-channel='{one['channel']}']")
        assert mine.locator(".chip").inner_text() == one["state"]
        assert f"{one['reconnects']} reconnect" in mine.inner_text()
    (mind,) = gateway.ask("/api/dmn")["agents"]
    mine = page.locator("#agents [data-agent='reverie']")
    expect(mine.locator(".mode")).to_have_text(mind["mode"])
    values = texts(page, "#agents .limit .value")
    assert values[0] == f"{mind['turns_today']} of {mind['daily_turns']}"
    assert values[2] == f"{mind['in_a_row']} of {mind['max_in_a_row']}"
    for why in mind["held"]:
        expect(mine).to_contain_text(why)
    states = gateway.ask("/api/dmn/history", hours=24)["states"]
    modes = {one["mode"] for one in states}
    assert len(modes) > 1
    drawn = page.locator("#agents .band rect").evaluate_all("all => all.map((one) => one.getAttribute('class'))")
    assert len(drawn) > len(modes)
    assert {one.removeprefix("m-") for one in drawn} <= modes
    starts = page.locator("#agents .band rect").evaluate_all("all => all.map((one) => Number(one.getAttribute('x')))")
    assert starts == sorted(starts)


def test_plots_have_a_legend_and_values_under_the_pointer(gateway: House, opened: Tab) -> None:
    page = opened.page
    told = gateway.ask("/api/cache", hours=24, by="channel")
    totals = {one["key"]: one for one in told["totals"]}
    for panel, column in (("share", 0), ("cost", 1)):
        rows = page.locator(f"#{panel} .legend tbody tr")
        assert texts(page, f"#{panel} .legend tbody th") == sorted(totals)
        for index, key in enumerate(sorted(totals)):
            cells = rows.nth(index).locator("td").all_inner_texts()
            one = totals[key]
            assert cells[1] == shown_tokens((one["read_tokens"], one["written_tokens"])[column])
    bars = page.locator("#cost svg rect").count()
    assert bars == sum(one["cost_usd"] > 0 for one in told["buckets"])
    plot = page.locator("#cost .plot")
    box = plot.bounding_box()
    assert box is not None
    dearest = max(told["buckets"], key=lambda one: one["cost_usd"])
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    expect(page.locator("#cost .tip")).to_contain_text("$")
    page.mouse.move(0, 0)
    expect(page.locator("#cost .tip")).to_be_hidden()
    plot.focus()
    hour = dearest["at"][11:13]
    for _ in range(26):
        page.keyboard.press("ArrowLeft")
        if f" {hour}:00" in page.locator("#cost .tip strong").inner_text():
            break
    expect(page.locator("#cost .tip")).to_contain_text(dearest["key"])
    page.locator("#cost .legend button").first.click()
    assert page.locator("#cost svg rect").count() < bars
    page.locator("#share .hours").select_option("168")
    expect(page.locator("#share .legend tbody tr").first).to_be_visible()


def test_conversations_turns_outbox_and_audit(gateway: House, opened: Tab) -> None:
    page = opened.page
    known = gateway.ask("/api/conversations", limit=200)["conversations"]
    ids = page.locator("#places button").evaluate_all("all => all.map((one) => one.dataset.id)")
    assert ids == [one["conversation"] for one in known]
    titles = {one["conversation"]: one["title"] for one in known}
    turns = gateway.ask("/api/turns", limit=100)["turns"]
    rows = page.locator("#turns tbody tr")
    assert rows.count() == len(turns)
    for index in (0, len(turns) // 2, len(turns) - 1):
        words = rows.nth(index).inner_text()
        for said in (titles[turns[index]["conversation"]], turns[index]["cause"], turns[index]["outcome"]):
            assert said in words
    box = gateway.ask("/api/outbox")
    assert page.locator("#outbox tbody tr").count() == len(box["deliveries"])
    assert page.locator("#outbox .waiting > li").count() == len(box["waiting"])
    acts = gateway.ask("/api/audit", limit=100)["audit"]
    assert page.locator("#audit tbody tr").count() == len(acts)
    assert acts or page.locator("#audit .empty").is_visible()


def test_hours_of_talk_leave_no_more_than_five_hundred_rows_and_no_more_memory(gateway: House, opened: Tab) -> None:
    page = opened.page
    session = opened.context.new_cdp_session(page)
    session.send("Performance.enable")

    def held() -> dict[str, float]:
        session.send("HeapProfiler.collectGarbage")
        return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}

    measured(gateway, traffic(gateway, 150, 6.0))
    expect(page.locator("#stream summary")).to_have_count(500)
    first = held()
    for _ in range(3):
        measured(gateway, traffic(gateway, 150, 6.0))
    gateway.say("the last of them", channel=IRC, sender="ann", room="#one")
    expect(page.locator("#stream .text").first).to_have_text("the last of them")
    last = held()
    assert page.locator("#stream summary").count() == 500
    assert last["JSHeapUsedSize"] < first["JSHeapUsedSize"] * 1.25 + 1_000_000, json.dumps([first, last])
    assert last["Nodes"] < first["Nodes"] * 1.25 + 1_000
    assert last["JSEventListeners"] < first["JSEventListeners"] * 1.25 + 100
