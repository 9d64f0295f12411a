"""The dashboard's files, as they are served: from the package, without a token, for there is no data in them.

The page may run and show only what comes from here: no other address, no script or style in the markup.
"""

from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from gateway.ops.http import HttpResponse

ASSET_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ASSET_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
INDEX_FILE: Final = "index.html"


@cache
def load_assets() -> MappingProxyType[str, HttpResponse]:
    """By path: `/` and `/page/...`. Read once, when the page is asked for first."""
    found = dict[str, HttpResponse]()
    for file in files("gateway.ops").joinpath("page").iterdir():
        kind = ASSET_TYPES.get(file.name[file.name.rfind(".") :])
        if kind is None:
            continue
        path = "/" if file.name == INDEX_FILE else f"/page/{file.name}"
        found[path] = HttpResponse(
            body=file.read_bytes(), content_type=kind, headers=(("Content-Security-Policy", ASSET_CSP),)
        )
    return MappingProxyType(found)
