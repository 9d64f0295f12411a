"""The part of the configuration that says what agents may do with tools: `tools`."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.core.addresses import AllowedHosts
from gateway.core.fields import ConfigSection, Duration
from gateway.core.permissions import ApprovalMode, ToolRole, ToolRule

_SERVER_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,22}[a-z0-9])?")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_server_name(value: str) -> str:
    if not _SERVER_NAME.fullmatch(value):
        raise ValueError("a server's name has at most 24 of a-z, 0-9, _ and -, the first and last of a-z and 0-9")
    return value


def _check_variables(value: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in value:
        if not _VARIABLE_NAME.fullmatch(name):
            raise ValueError("names of variables have letters, digits and _")
    return value


def _check_allowed_hosts(value: tuple[str, ...]) -> tuple[str, ...]:
    AllowedHosts.parse(value)
    return value


class FilesConfig(ConfigSection):
    """read_file, write_file, edit_file, glob, grep, view_image, send_file: all in the agent's `files`."""

    max_bytes: int = Field(default=10_000_000, ge=1)
    """Of one file that is read or written."""


class BashConfig(ConfigSection):
    """The shell, and what runs in the background."""

    sandbox: Literal["bubblewrap", "off"] = "bubblewrap"
    """bubblewrap: without it nothing runs. off: commands run as the gateway's own user, and see what it sees.

    Where the gateway runs as root, commands run as `nobody` either way, and the agent's files are given to that user.
    """
    network: bool = False
    """Whether commands reach it."""
    timeout: Duration = 60.0
    """Of a command that says none."""
    max_timeout: Duration = 600.0
    """The longest that a command may ask for, and that a job in the background lives."""
    output_bytes: int = Field(default=200_000, ge=1_000, le=2_000_000)
    """Of what one command writes: the beginning and the end are kept."""
    memory_bytes: int = Field(default=1_073_741_824, ge=33_554_432)
    """Of all processes of one command together."""
    processes: int = Field(default=64, ge=4)
    """Of one command at once."""
    disk_bytes: int = Field(default=104_857_600, ge=1_000_000)
    """Of one file that a command writes. All that one command leaves on the disk may be ten times as much."""
    jobs: int = Field(default=4, ge=0)
    """In the background at once. 0: none."""

    @model_validator(mode="after")
    def _check_timeouts(self) -> Self:
        if not self.timeout or not self.max_timeout:
            raise ValueError("timeout and max_timeout are more than 0")
        if "timeout" in self.model_fields_set and self.timeout > self.max_timeout:
            raise ValueError("timeout is at most max_timeout")
        return self


class SearchConfig(ConfigSection):
    """Who is asked by `web_search`."""

    provider: Literal["none", "searxng", "brave", "tavily"] = "none"
    """none: there is no `web_search`."""
    base_url: str = ""
    """Empty: the provider's own. searxng: required."""
    api_key: SecretStr | None = None
    """brave, tavily: required."""

    @model_validator(mode="after")
    def _check_provider(self) -> Self:
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise ValueError("base_url begins with https:// or http://")
        if self.provider == "searxng" and not self.base_url:
            raise ValueError("searxng needs a base_url, e.g. http://127.0.0.1:8888")
        if self.provider in ("brave", "tavily") and self.api_key is None:
            raise ValueError(f"{self.provider} needs an api_key")
        return self


class WebConfig(ConfigSection):
    """web_fetch, web_search."""

    timeout: Duration = 20.0
    """Of one call, with all redirects."""
    max_bytes: int = Field(default=5_000_000, ge=1)
    """Of one page, unpacked."""
    max_redirects: int = Field(default=5, ge=0, le=20)
    """Of one page. 0: none is followed."""
    allow_private: Annotated[tuple[str, ...], AfterValidator(_check_allowed_hosts)] = Field(default=(), strict=False)
    """Hosts, `host:port`s or networks (10.0.0.0/8) that may be fetched though they are not public."""
    search: SearchConfig = SearchConfig()


class McpServerConfig(ConfigSection):
    """One Model Context Protocol server: a program of ours, or an address."""

    command: tuple[str, ...] = Field(default=(), strict=False)
    """The program and its arguments, spoken to on its standard input and output."""
    env: Annotated[dict[str, SecretStr], AfterValidator(_check_variables)] = Field(default={})
    """All of its environment, beside PATH, HOME and LANG."""
    url: str = ""
    """Of a server that speaks streamable HTTP."""
    headers: dict[str, SecretStr] = Field(default={})
    """Sent with each request to it."""
    role: ToolRole = "admin"
    """The lowest role that may have its tools called; `tools.rules` can say otherwise."""
    approval: ApprovalMode = "untrusted"
    """As in `tools.rules`."""
    tools: tuple[str, ...] = Field(default=("*",), strict=False)
    """Globs: which of its tools are taken."""
    timeout: Duration = 60.0
    """Of one call."""

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("the url of a server begins with https:// or http://")
        if self.headers and not self.url:
            raise ValueError("headers are for a server with a url; a program is given its secrets by env")
        return self


class ApprovalsConfig(ConfigSection):
    """How what needs an admin's word gets it."""

    room: str = ""
    """The address of a room where approvals are asked for, e.g. `telegram.main/-1001`. Empty: where the turn is."""
    timeout: Duration = 120.0
    """Then the answer is no."""


class ToolsConfig(ConfigSection):
    """What agents may do besides speaking."""

    off: tuple[str, ...] = Field(default=(), strict=False)
    """Globs: tools that no agent is told of."""
    max_rounds: int = Field(default=8, ge=0, le=100)
    """Answers with tool calls in one turn; then it has to answer. 0: no tool is carried out."""
    unasked_role: ToolRole = "member"
    """What an agent may do unasked, at most: never more than the least of those whose words it is shown."""
    rules: tuple[ToolRule, ...] = Field(default=(), strict=False)
    files: FilesConfig = FilesConfig()
    bash: BashConfig = BashConfig()
    web: WebConfig = WebConfig()
    mcp: dict[Annotated[str, AfterValidator(_check_server_name)], McpServerConfig] = Field(default={})
    approvals: ApprovalsConfig = ApprovalsConfig()
