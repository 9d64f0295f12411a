"""Take the pictures of the dashboard in docs/images again: `python tests/checks/images.py`.

A real gateway with stand-ins for three platforms and for the model; the system's Chromium.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gateway.config.models import Settings  # noqa: E402 - the path is set above
from reverie.testing.servers.model_api import Answer, Json  # noqa: E402
from tests.kits.dashboard import DISCORD, IRC, TELEGRAM, TOKEN, House, chromium, house, tab  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDE = {"width": 1440, "height": 860}
DESK = {"width": 1280, "height": 720}
PHONE = {"width": 390, "height": 760}
ROOMS = {IRC: ("#garden", "#build"), TELEGRAM: ("#kitchen",), DISCORD: ("#books",)}
TALK = (
    (IRC, "#build", "ann", "the tests on main are red again"),
    (IRC, "#build", "ben", "reverie, what broke the build?"),
    (TELEGRAM, "#kitchen", "olga", "reverie, which herbs can go out before May?"),
    (DISCORD, "#books", "zoe", "reverie: what did we want to read in December?"),
    (IRC, "#garden", "mia", "frost tonight, cover the fig tree"),
    (IRC, "#garden", "ann", "reverie, remind us at eight to cover the fig tree"),
    (TELEGRAM, None, "olga", "how much did you cost me today?"),
)
ANSWERS = {
    "broke": "Two tests of the parser fail since `3f2a91c`:\n\n- `test_quotes`: an empty string\n"
    "- `test_nested`: one level too few\n\n**ann**'s change of this morning touched both.",
    "herbs": "Chives, parsley and mint stand a light frost. Basil waits until the nights stay "
    "above 10 degrees.",
    "read": "*The Left Hand of Darkness*, by Ursula K. Le Guin. You set the first talk for "
    "December 12.",
    "fig": "I remind you here at 20:00.",
    "cost": "About two cents; nine tenths of what I read came from the cache.",
}
STRANGER = "Hello! Olga told me about you. May I ask you something?"


def configure(made: Settings) -> Settings:
    """Return the configuration with these rooms, and strangers who must ask."""
    channels = {
        name: one.model_copy(update={"rooms": ROOMS[name]}) for name, one in made.channels.items()
    }
    people = {f"{channel}:{who}": "member" for channel, _, who, _ in TALK if who != "olga"}
    roles = made.access.roles.model_copy(update={"member": tuple(people)})
    access = made.access.model_copy(update={"dm": "pairing", "roles": roles})
    return made.model_copy(update={"channels": channels, "access": access})


def answer(body: Json) -> Answer:
    """Answer by a word of the newest message."""
    asked = str(body["messages"][-1]["content"])
    found = [text for word, text in ANSWERS.items() if word in asked]
    return Answer(text=found[-1] if found else "I am here.")


def take(gateway: House) -> None:
    """Let people talk, and take the pictures."""
    gateway.api.default = answer
    for channel, room, who, text in TALK:
        gateway.say(text, channel=channel, sender=who, room=room)
    gateway.say(STRANGER, channel=TELEGRAM, sender="nuffe")
    with chromium() as browser:
        for name, view, scheme, size in (
            ("dashboard", "conversations", "light", WIDE),
            ("dashboard-waiting", "waiting", "light", DESK),
            ("dashboard-dark", "live", "dark", DESK),
            ("dashboard-phone", "waiting", "dark", PHONE),
        ):
            with tab(browser, viewport=size, color_scheme=scheme) as it:
                page = it.open(gateway.address, view)
                prepare(page, view)
                page.mouse.move(0, 0)
                page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")


def prepare(page: Page, view: str) -> None:
    """Return once a view is as the picture shows it."""
    if view == "conversations":
        page.locator("#conversations .line", has_text="#build").click()
        expect(page.locator(".last-prompt .bill")).to_be_visible()
    elif view == "waiting":
        expect(page.locator("#waiting .card")).to_be_visible()
    elif view == "live":
        expect(page.locator("#live .rows .line")).not_to_have_count(0)


def main() -> None:
    """Write the pictures."""
    assert TOKEN
    with tempfile.TemporaryDirectory() as folder, house(Path(folder), configure) as gateway:
        take(gateway)


if __name__ == "__main__":
    main()
