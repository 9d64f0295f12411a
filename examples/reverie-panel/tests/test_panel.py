"""The panel, as the dashboard asks for it."""

from pathlib import Path
from typing import Any

import httpx
from reverie_panel import BusyRooms

from reverie.testing.gateway import Gateway, Script, settings
from reverie.testing.plugins import PluginConformance
from reverie.testing.servers.ports import free_port

TOKEN = "an-operators-token-0123456789"


class TestBusyRooms(PluginConformance):
    plugin = BusyRooms


async def test_the_busiest_rooms_are_rows_of_the_panel(tmp_path: Path) -> None:
    port = free_port()
    channels = {"console.local": {"platform": "console", "rooms": ["tea", "coffee"]}}
    made = settings(tmp_path, channels=channels, ops={"port": port, "token": TOKEN})
    async with (
        Gateway(made, Script()) as gateway,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {TOKEN}"}
        ) as client,
    ):
        for room in ("tea", "coffee", "tea"):
            await gateway.say("hello", room=room)
        await gateway.say("this is between us")

        async def get(path: str, **query: int) -> Any:
            return (await client.get(path, params=query)).raise_for_status().json()

        [panel] = [
            one for one in (await get("/api/plugins"))["items"] if one["name"] == "busy_rooms"
        ]
        path = panel["panels"]["Busy rooms"]
        rows = await get(path)
        assert [(row["Room"], row["Messages"]) for row in rows] == [
            ("console.local/tea", 2),
            ("console.local/coffee", 1),
        ]
        assert await get(path, most=1) == rows[:1]
