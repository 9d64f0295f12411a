"""Reading web pages and searching for them: what a model is told of these tools. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import ToolArguments, define_tool

MAX_URL_CHARS: Final = 4_000
MAX_WEB_QUERY_CHARS: Final = 400
"""What Brave takes at most (api-dashboard.search.brave.com, api-reference/web/search)."""
DEFAULT_RESULTS: Final = 5
MAX_RESULTS: Final = 20
"""What Brave and Tavily give at most."""


class WebFetchArgs(ToolArguments):
    """What `web_fetch` takes."""

    url: Annotated[
        str, Field(min_length=1, max_length=MAX_URL_CHARS, description="The whole address, with http:// or https://.")
    ]


class WebSearchArgs(ToolArguments):
    """What `web_search` takes."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_WEB_QUERY_CHARS, description="A few words.")]
    count: Annotated[int, Field(ge=1, le=MAX_RESULTS, description="How many results.")] = DEFAULT_RESULTS


WEB_FETCH = define_tool(
    "web_fetch",
    "Read a page on the public web as text, with its links. Runs no scripts, sends no logins.",
    WebFetchArgs,
    task=True,
    parallel=True,
)
WEB_SEARCH = define_tool(
    "web_search",
    "Search the web: titles, addresses and short extracts. Read what fits with web_fetch.",
    WebSearchArgs,
    task=True,
    parallel=True,
)
WEB_TOOLS: Final = (WEB_FETCH, WEB_SEARCH)
