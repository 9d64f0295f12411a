"""Against the protocol's reference server, as others wrote it, over both of its transports."""

import asyncio

from tests.kits.mcp import Town, everything, listening_everything, town


async def use(every: Town) -> None:
    """What it can do, as far as it is the same every time."""
    echoed = await every.call("every_echo", message="hi")
    assert (echoed.text, echoed.is_error, echoed.is_untrusted, echoed.kind) == (
        "Echo: hi",
        False,
        True,
        "mcp",
    )
    assert echoed.origin == "mcp every echo"
    assert (await every.call("every_get-sum", a=1, b=2)).text == "The sum of 1 and 2 is 3."
    assert "expected number" in (await every.call("every_get-sum", a=1, b="x")).text
    assert (
        "[image, image/png, 4,033 bytes: it cannot be shown here]"
        in (await every.call("every_get-tiny-image")).text
    )
    assert (
        '"conditions"'
        in (await every.call("every_get-structured-content", location="Chicago")).text
    )
    assert "[link to demo://" in (await every.call("every_get-resource-links")).text
    embedded = await every.call("every_get-resource-reference", resourceType="Text", resourceId=1)
    assert "[demo://resource/dynamic/text/1]\nResource 1:" in embedded.text
    both = await asyncio.gather(
        *(every.call("every_echo", message=str(number)) for number in range(20))
    )
    assert [one.text for one in both] == [f"Echo: {number}" for number in range(20)]


async def test_its_tools_over_its_standard_input_and_output() -> None:

    async with town(
        {"every": {"command": [*everything(), "stdio"], "env": {"KEY": "hush-hush"}}}
    ) as every:
        names = [hand.spec.name for hand in every.servers.tools]
        assert names == sorted(names)
        assert "mcp_every_echo" in names
        await use(every)
        env = (await every.call("every_get-env")).text
        assert "hush-hush" not in env
        assert '"KEY": "[redacted]"' in env


async def test_its_tools_at_an_address() -> None:

    with listening_everything() as server:
        async with town(
            {"every": {"url": server.url, "headers": {"Authorization": "Bearer hush-hush"}}}
        ) as every:
            await use(every)


async def test_it_is_another_one_that_knows_no_session() -> None:
    """It has been restarted while nobody looked: a call fails, and soon there is a new session."""

    with listening_everything() as server:
        async with town({"every": {"url": server.url}}) as every:
            assert (await every.call("every_echo", message="one")).text == "Echo: one"
            server.down()
            await asyncio.to_thread(server.up)
            assert "It did not work" in (await every.call("every_echo", message="two")).text
            while (await every.call("every_echo", message="three")).text != "Echo: three":
                await asyncio.sleep(0.05)
