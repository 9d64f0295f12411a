"""`@route`: paths of the operator's HTTP server that plugins answer."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, create_model

from gateway.core.frozen import frozen
from gateway.core.tool import keyword_fields

MethodT = TypeVar("MethodT", bound=Callable[..., Any])
_ROUTE: Final = "declared_route"
WAITING: Final = "waiting"
ClientRole = Literal["read", "operate", "own"]
"""What the holder of a token may do; each includes those before it."""


class RouteRefused(Exception):
    """The request is not carried out. The text says why, in one sentence."""


@frozen
class Route:
    """A path of the operator's HTTP server that a plugin answers."""

    method: Literal["GET", "POST"]
    path: str
    panel: str
    """Heading of the panel of the dashboard that shows the answer. Empty: there is none."""
    role: ClientRole
    arguments: type[BaseModel]
    """Input: the query, or the JSON body of a POST."""
    answer: Callable[..., Awaitable[object]]


def route(
    method: Literal["GET", "POST"],
    path: str,
    *,
    panel: str = "",
    role: ClientRole | None = None,
    arguments: type[BaseModel] | None = None,
) -> Callable[[MethodT], MethodT]:
    """Answer `/api/plugins/NAME/PATH` with this method of a plugin, for clients with a token that
    has this role (without one: `read` for a GET, `operate` for a POST, which is audited).

    Its keyword-only parameters are the input, unless `arguments` is; with a parameter `client` it
    is told who asks. It returns what pydantic can dump to JSON, or raises RouteRefused; with a
    `panel`, which only a GET without required input has, a list of rows:
    mappings from the heading of a column to a text or a number. Times and texts are shown as they
    are, redacted and cut. A row may have `_actions`, a list of what can be done about it:
    `{label, words}`, an order, with `place` and `agent` as in `CommandRequest`, or
    `{label, path, body}`, a POST to a path of the API; `edit` names fields of the body, with their
    texts, that a person may change before, `confirm` is a question that is asked before, and
    `role` is the role that is needed, if not `operate`.

    GET `waiting` (`WAITING`) of a plugin returns what waits there for a person: the fields of
    `gateway.core.api_models.WaitingItem`.
    """

    def declare(method_of: MethodT) -> MethodT:
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)
        method_of.__dict__[_ROUTE] = Route(
            method=method,
            path=path,
            panel=panel,
            role=role or ("read" if method == "GET" else "operate"),
            arguments=arguments
            or create_model(path, __config__=config, **keyword_fields(method_of)),
            answer=method_of,
        )
        return method_of

    return declare


def routes_of(owner: object) -> list[Route]:
    """Return the routes that the class of an object declares, bound to it."""
    return [
        replace(declared, answer=partial(declared.answer, owner))
        for one in vars(type(owner)).values()
        if (declared := getattr(one, "__dict__", {}).get(_ROUTE)) is not None
    ]
