"""Check of who is an owner."""

from collections.abc import Sequence

from gateway.config.check_registry import CheckContext, check
from gateway.core.facts import RoleAssigned
from gateway.core.findings import Finding, warning
from gateway.store import StoreError, StoreLocation, store_location
from gateway.store.check import open_reader


@check("owners")
async def check_owners(context: CheckContext) -> Sequence[Finding]:
    """Check whether anybody is an owner, by the configuration or added at run time."""
    access, store = context.settings.access, store_location(context.settings.store)
    if access.roles.owner or any(one.role == "owner" for one in access.grants):
        return []
    if await _count_paired_owners(store, alive=context.gateway_state.is_alive):
        return []
    what = (
        "nobody is an owner: nobody can approve requests, administer the bot, or get notices "
        "about problems"
    )
    fix = (
        "add yourself to access.roles.owner, or run `reverie ctl pair seed CHANNEL:ID owner "
        "--config DIR`"
    )
    return [warning("config.owner", what, fix, "access.roles.owner")]


async def _count_paired_owners(store: StoreLocation, *, alive: bool) -> int:
    try:
        async with await open_reader(store, alive=alive) as reader:
            held = await reader.current_facts("role_given")
    except (StoreError, OSError):  # the check of the store reports the reason
        return 0
    return sum(1 for one in held if isinstance(one.fact, RoleAssigned) and one.fact.role == "owner")
