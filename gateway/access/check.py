"""Check of who is an owner."""

from collections.abc import Sequence

from gateway.config.check_registry import CheckContext, check
from gateway.core.facts import RoleAssigned
from gateway.core.findings import Finding, unknown, warning
from gateway.store import Store, StoreError, StoreLocation, StoreMissing, store_location


@check("owners")
async def check_owners(context: CheckContext) -> Sequence[Finding]:
    """Check whether anybody is an owner, by the configuration or added at run time."""
    access, store = context.settings.access, store_location(context.settings.store)
    if access.roles.owner or any(one.role == "owner" for one in access.grants):
        return []
    try:
        if await _count_paired_owners(store):
            return []
    except (StoreError, OSError):
        fix = "see the findings of the store"
        return [unknown("config.owner", "whether anybody was made an owner", fix, str(store))]
    what = (
        "nobody is an owner: nobody can approve requests, administer the bot, or get notices "
        "about problems"
    )
    fix = "add yourself to access.roles.owner"
    if "pairing" not in context.settings.plugins.off:
        fix += ", or run `reverie ctl pair seed CHANNEL:ID owner --config DIR`"
    return [warning("config.owner", what, fix, "access.roles.owner")]


async def _count_paired_owners(store: StoreLocation) -> int:
    try:
        async with await Store.open_readonly(store, "visitor") as reader:
            held = await reader.current_facts("role_given")
    except StoreMissing:
        return 0
    return sum(1 for one in held if isinstance(one.fact, RoleAssigned) and one.fact.role == "owner")
