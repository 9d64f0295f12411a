"""Check of the search server."""

from collections.abc import Sequence

from gateway.config.check_registry import CheckContext, check
from gateway.core.findings import Finding
from gateway.core.net_probe import probe_direct


@check("search server", online=True)
async def check_search(context: CheckContext) -> Sequence[Finding]:
    """Check whether a search server of one's own can be reached."""
    search = context.settings.tools.web.search
    if search.provider == "none" or not search.base_url:
        return []
    return await probe_direct(search.base_url, where="tools.web.search.base_url")
