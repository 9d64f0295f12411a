"""Configuration section `tools`: the tools of agents, their limits and permissions."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.core.addresses import AllowedHosts
from gateway.core.events import Address
from gateway.core.fields import ConfigSection, Duration
from gateway.core.permissions import ApprovalMode, ToolRole, ToolRule


def _check_server_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9_-]{0,22}[a-z0-9])?", value):
        raise ValueError(
            "a server's name has at most 24 of a-z, 0-9, _ and -, the first and last of a-z and 0-9"
        )
    return value


def _check_variables(value: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError("names of variables have letters, digits and _")
    return value


def _check_allowed_hosts(value: tuple[str, ...]) -> tuple[str, ...]:
    AllowedHosts.parse(value)
    return value


def _check_room(value: str) -> str:
    try:
        return Address.parse(value).conversation if value else ""
    except ValueError:
        raise ValueError(
            "not an address; write a channel, a slash and a room, e.g. telegram.main/-1001"
        ) from None


class FilesConfig(ConfigSection):
    """read_file, write_file, edit_file, glob, grep, view_image, send_file: all in the agent's
    `files`.
    """

    max_bytes: int = Field(default=10_000_000, ge=1)
    """Size of one file that is read or written."""


class BashConfig(ConfigSection):
    """The shell and its background jobs."""

    sandbox: Literal["bubblewrap", "off"] = "bubblewrap"
    """bubblewrap: nothing runs if it is missing. off: commands run as the gateway's own user, with
    all its access.

    Where the gateway runs as root, commands run as `nobody` either way, and the agent's files are
    given to that user.
    """
    network: bool = False
    """True: commands have network access."""
    timeout: Duration = 60.0
    """Time limit of a command that sets none."""
    max_timeout: Duration = 600.0
    """The longest time limit that a command may set, and the lifetime of a background job."""
    memory_bytes: int = Field(default=1_073_741_824, ge=33_554_432)
    """Memory of each process of a command."""
    processes: int = Field(default=256, ge=8)
    """Processes and threads of one command at once."""
    disk_bytes: int = Field(default=104_857_600, ge=1_000_000)
    """Size of one file that a command writes. All files of one command may have ten times as
    much."""

    @model_validator(mode="after")
    def _check_timeouts(self) -> Self:
        if not self.timeout or not self.max_timeout:
            raise ValueError("timeout and max_timeout must be more than 0")
        if "timeout" in self.model_fields_set and self.timeout > self.max_timeout:
            raise ValueError("timeout must be at most max_timeout")
        return self


class SearchConfig(ConfigSection):
    """Search engine of `web_search`."""

    provider: Literal["none", "duckduckgo", "searxng", "brave", "tavily"] = "none"
    """none: no agent gets `web_search`. duckduckgo: needs no key, and refuses whoever searches
    much."""
    base_url: str = ""
    """Empty: the provider's own. searxng: required."""
    api_key: SecretStr | None = None
    """brave, tavily: required."""

    @model_validator(mode="after")
    def _check_provider(self) -> Self:
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise ValueError("base_url must begin with https:// or http://")
        if self.provider == "searxng" and not self.base_url:
            raise ValueError("searxng needs a base_url, e.g. http://127.0.0.1:8888")
        if self.provider in ("brave", "tavily") and self.api_key is None:
            raise ValueError(f"{self.provider} needs an api_key")
        return self


class WebConfig(ConfigSection):
    """web_fetch, web_search."""

    allow_private: Annotated[tuple[str, ...], AfterValidator(_check_allowed_hosts)] = Field(
        default=(), strict=False
    )
    """Hosts, `host:port`s or networks (10.0.0.0/8) that may be fetched although they are not
    public."""
    search: SearchConfig = SearchConfig.model_construct()


class McpServerConfig(ConfigSection):
    """One Model Context Protocol server: a local program, or an address."""

    command: tuple[str, ...] = Field(default=(), strict=False)
    """The program and its arguments, used through its standard input and output."""
    env: Annotated[dict[str, SecretStr], AfterValidator(_check_variables)] = Field(default={})
    """Its complete environment, besides PATH, HOME and LANG."""
    url: str = ""
    """Address of a server with streamable HTTP."""
    headers: dict[str, SecretStr] = Field(default={})
    """Headers of each request to it."""
    role: ToolRole = "admin"
    """The lowest role that may ask for its tools; `tools.rules` can change that."""
    approval: ApprovalMode = "untrusted"
    """Like `approval` in `tools.rules`."""
    tools: tuple[str, ...] = Field(default=("*",), strict=False)
    """Globs of its tools that are used."""
    timeout: Duration = 60.0
    """Time limit of one call."""

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("the url of a server must begin with https:// or http://")
        if self.headers and not self.url:
            raise ValueError(
                "headers are for a server with a url; give secrets to a program with env"
            )
        return self


class ApprovalsConfig(ConfigSection):
    """Approvals of tool calls by an admin."""

    room: Annotated[str, AfterValidator(_check_room)] = ""
    """Address of a room where the bot asks for approvals, e.g. `telegram.main/-1001`. Empty: in the
    room of the turn."""
    timeout: Duration = 43_200.0
    """Time after which the call counts as denied. The agent itself waits for two minutes, and not
    at all once somebody speaks to it; a call that is approved later is carried out then."""


class ToolsConfig(ConfigSection):
    """Tools of the agents."""

    off: tuple[str, ...] = Field(default=(), strict=False)
    """Globs of tools that no agent gets."""
    max_rounds: int = Field(default=8, ge=0, le=100)
    """Model responses with tool calls in one turn; then the model must answer. 0: no tool runs.
    Left out, 1 for models of llama.cpp with a window of at most 16,384 tokens."""
    unasked_role: ToolRole = "member"
    """Role of an agent in autonomous work, at most: never more than the lowest role among the
    authors of its request."""
    rules: tuple[ToolRule, ...] = Field(default=(), strict=False)
    files: FilesConfig = FilesConfig.model_construct()
    bash: BashConfig = BashConfig.model_construct()
    web: WebConfig = WebConfig.model_construct()
    mcp: dict[Annotated[str, AfterValidator(_check_server_name)], McpServerConfig] = Field(
        default={}
    )
    approvals: ApprovalsConfig = ApprovalsConfig.model_construct()

    @property
    def all_off(self) -> tuple[str, ...]:
        """Globs of the tools that no agent gets: `off`, and those that could not work."""
        return (*self.off, "web_search") if self.web.search.provider == "none" else self.off
