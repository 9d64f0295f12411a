"""What requests to the Messages API cost, beside the clairvoyant optimum and beside other layouts of them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agent.cache.prices import PriceTable
from tests.bench.optimum import Asked, Cost, optimum
from tests.servers.messages_cache import MessagesCache, Ticket, Tokens
from tests.servers.model_api import ModelApi

Json = dict[str, Any]
LONG: Json = {"type": "ephemeral", "ttl": "1h"}
SHORT: Json = {"type": "ephemeral", "ttl": "5m"}
WARM_S = 3_600.0
PRICES = Path(__file__).parents[2] / "config" / "prices.yaml"


class Judged(NamedTuple):
    """What a row of requests cost."""

    ratio: float
    """To the clairvoyant optimum of the requests as we sent them."""
    read_share: float
    """Of all input tokens."""
    warm_share: float
    """Of those in requests whose conversation had asked within the last hour."""


class Sent(NamedTuple):
    """One request that was answered."""

    at_s: float
    body: Json
    ticket: Ticket


def sent(api: ModelApi) -> list[Sent]:
    """All that was answered, in the order of arrival."""
    return [Sent(one.ticket.at_s, one.body, one.ticket) for one in api.seen if one.ticket is not None]


def cost_of(model: str) -> Cost:
    price = PriceTable.parse(PRICES.read_text(encoding="utf-8")).find(model)
    return Cost(price.read, price.write_5m, price.write_1h)


def best(requests: list[Sent], cost: Cost) -> float:
    return optimum((Asked(one.at_s, list(_nodes(one.ticket))) for one in requests), cost)


def _nodes(ticket: Ticket) -> Iterator[tuple[int, int]]:
    before = 0
    for prefix in ticket.path:
        yield id(prefix), prefix.tokens - before
        before = prefix.tokens


def asked(requests: list[Sent]) -> list[Sent]:
    """Those that somebody wanted answered."""
    return [one for one in requests if one.body["max_tokens"]]


def judge(tickets: list[Ticket], requests: list[Sent], cost: Cost) -> Judged:
    """`tickets` are what became of `requests` in some layout."""
    paid = read = total = warm_read = warm_total = 0.0
    last: dict[str, float] = {}
    for ticket, request in zip(tickets, requests, strict=True):
        usage = ticket.usage
        paid += (
            usage.input_tokens
            + usage.cache_read_input_tokens * cost.read
            + usage.ephemeral_5m_input_tokens * cost.write_5m
            + usage.ephemeral_1h_input_tokens * cost.write_1h
        )
        if not request.body["max_tokens"]:
            continue  # a refresh: its price counts, and nothing else
        read, total = read + usage.cache_read_input_tokens, total + usage.total
        conversation = str([block["text"] for block in request.body["system"]])
        if request.at_s - last.get(conversation, -WARM_S) < WARM_S:
            warm_read, warm_total = warm_read + usage.cache_read_input_tokens, warm_total + usage.total
        last[conversation] = request.at_s
    return Judged(paid / best(asked(requests), cost), read / total, warm_read / max(1.0, warm_total))


def planned(api: ModelApi, model: str) -> Judged:
    """What we sent, as it was billed."""
    requests = sent(api)
    return judge([one.ticket for one in requests], requests, cost_of(model))


def other_layouts(api: ModelApi, model: str, tokens: Tokens) -> Mapping[str, Judged]:
    """The same traffic in other layouts, through a cache of their own."""
    requests, cost = asked(sent(api)), cost_of(model)
    judged = {}
    for name, layout in LAYOUTS.items():
        cache, tickets = MessagesCache(tokens), []
        for request in requests:
            ticket = cache.begin(layout(request), at_s=request.at_s)
            cache.began(ticket)
            tickets.append(ticket)
        judged[name] = judge(tickets, requests, cost)
    return judged


def _texts(request: Sent) -> list[str]:
    return [block["text"] for block in request.body["system"]]


def _bare(blocks: list[Json]) -> list[Json]:
    return [{key: block[key] for key in block if key != "cache_control"} for block in blocks]


def _body(request: Sent, system: list[Json], *, mark_last: Json | None = None) -> Json:
    messages = [message | {"content": _bare(message["content"])} for message in request.body["messages"]]
    if mark_last:
        messages[-1]["content"][-1] = messages[-1]["content"][-1] | {"cache_control": mark_last}
    tools = _bare(request.body.get("tools", []))
    return {"model": request.body["model"], "tools": tools, "system": system, "messages": messages}


def _block(text: str, mark: Json | None = None) -> Json:
    return {"type": "text", "text": text} | ({"cache_control": mark} if mark else {})


def one_block(request: Sent) -> Json:
    """All in one marked system block, with the channel and the date in it; the newest message marked."""
    text = "\n\n".join([*_texts(request), f"It is minute {request.at_s // 60}."])
    return _body(request, [_block(text, SHORT)], mark_last=SHORT)


def no_history(request: Sent) -> Json:
    """One marked system block, the same everywhere; the rest behind it and the history unmarked."""
    shared, *rest = _texts(request)
    return _body(request, [_block(shared, SHORT), *(_block(text) for text in rest)])


def four_blocks(request: Sent) -> Json:
    """Tools, identity and binding for an hour, the channel for five minutes with per-turn text in it."""
    *stable, channel = _texts(request)
    system = [_block(text, LONG) for text in stable[-2:]]
    body = _body(request, [*system, _block(f"{channel}\nIt is minute {request.at_s // 60}.", SHORT)])
    body["tools"][-1:] = [tool | {"cache_control": LONG} for tool in body["tools"][-1:]]
    return body


def uncached(request: Sent) -> Json:
    return _body(request, [_block(text) for text in _texts(request)])


LAYOUTS: Mapping[str, Callable[[Sent], Json]] = {
    "one block, channel and date in it": one_block,
    "one marked block, history not": no_history,
    "four blocks, per-turn text in last": four_blocks,
    "no caching": uncached,
}
