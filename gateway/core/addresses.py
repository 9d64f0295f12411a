"""Web addresses: URLs that may be fetched, and IP addresses that may be connected to. Pure.

Not to be confused with `gateway.core.events.Address`, a place on a platform. `parse_url` gives a
`FetchTarget`; `check_target` checks it before its name is looked up, and `check_addresses` after.

A model may ask for a URL that anybody wrote, so a fetch must not reach what only this machine can:
its own services, its local network, the cloud's metadata (CWE-918). A URL is parsed once, strictly,
and the parsed form is what is requested: no second parser can find another host in it. A name
proves nothing: each address that it resolves to is checked, and the connection goes to a checked
address.

The lists of addresses are those of IANA's registries of special-purpose addresses
(www.iana.org/assignments, iana-ipv4-special-registry and iana-ipv6-special-registry), written out:
the set that `ipaddress` counts as global has changed between releases of Python.
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal, Self
from urllib.parse import quote, urljoin, urlsplit

from gateway.core.frozen import frozen
from gateway.core.tool_spec import ToolCallRefused

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

NOT_PUBLIC_4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers; a cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host, which answers its guests only
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
GLOBAL_UNICAST_6: Final = IPv6Network("2000::/3")
"""All addresses allocated so far (RFC 4291, 2.4); loopback, local and multicast addresses are
outside."""
NOT_PUBLIC_6: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID and others
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which carries any IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
NAT64: Final = IPv6Network("64:ff9b::/96")
"""Prefix by which a network without IPv4 reaches IPv4 addresses (RFC 6052)."""
_ISATAP: Final = 0x0000_5EFE
"""Stands in front of an IPv4 address at the end (RFC 5214, 6.1)."""
_ISATAP_BITS: Final = 0xFCFF_FFFF
"""The bits that are compared with it: the two others give the kind of that address."""
MAX_URL_CHARS: Final = 4_000
MAX_SHOWN_HOST_CHARS: Final = 100
"""Length of a host in an error message: it comes from the model or from a page."""
WEB_PORTS: Final = frozenset({80, 443})
"""Allowed ports below 1024. The others there are of services open to request smuggling (mail,
files, shells)."""
BLOCKED_PORTS: Final = frozenset((
    1433, 1521, 1719, 1720, 1723, 2049, 2375, 2376, 2379, 2380, 3306, 3389, 3659, 4045, 4190, 5060,
    5061, 5432, 5672, 5900, 5984, 6000, 6379, 6443, 6566, *range(6665, 6670), 6679, 6697, 8086,
    9042, 9092, 9200, 9300, 10080, 10250, 11211, 27017, 50070,
))  # fmt: skip
"""Ports of databases and the like, and those that browsers block (fetch.spec.whatwg.org, port
blocking)."""
INTERNAL_NAMES: Final = (
    "localhost", "localdomain", "local", "internal", "intranet", "private", "lan", "home", "corp",
    "home.arpa", "test", "example", "invalid", "onion", "alt", "in-addr.arpa", "ip6.arpa",
)  # fmt: skip
"""Last labels of names that public DNS does not have (RFC 6761, 6762, 7686, 8375, 9476; ICANN on
.internal), or that encode an address. They are not even looked up."""
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label like this makes a name an IPv4 address for some parsers (url.spec.whatwg.org, ends
in a number)."""
_SAFE_PATH_CHARS = "/%:@!$&'()*+,;=~-._"


def embedded_ipv4(address: IpAddress) -> IPv4Address | None:
    """Return the IPv4 address that a connection to this one ends at, or None if there is none."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else None


def is_public(address: IpAddress) -> bool:
    """Return whether any host on the Internet could connect to the address as well."""
    embedded = embedded_ipv4(address)
    if embedded is not None:
        return is_public(embedded)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_4)
    if address.scope_id is not None or address not in GLOBAL_UNICAST_6:
        return False
    if (int(address) >> 32) & _ISATAP_BITS == _ISATAP:
        return False
    return not any(address in network for network in NOT_PUBLIC_6)


@frozen
class FetchTarget:
    """A parsed URL: scheme, host, port and path."""

    scheme: Literal["http", "https"]
    host: str
    """A name in ASCII and lower case without a last dot, or an address in its usual notation,
    without brackets."""
    port: int
    path: str
    """Path with query; ASCII. Without the fragment."""
    address: IpAddress | None = None

    @property
    def authority(self) -> str:
        """Host and port as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"
        )

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.scheme}://{self.authority}{self.path}"


@frozen(kw_only=False)
class AllowedHosts:
    """Hosts and networks that the operator allows to be fetched although they are not public."""

    hosts: frozenset[tuple[str, int | None]]
    """Names, with a port or with None for any."""
    networks: tuple[tuple[IpNetwork, int | None], ...]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """Parse hosts, host:ports and networks. Raises ValueError with the right notation."""
        hosts, networks = set[tuple[str, int | None]](), list[tuple[IpNetwork, int | None]]()
        for entry in entries:
            network = _parse_network(entry)
            if network is not None:
                networks.append((network, None))
                continue
            parts = _AUTHORITY.fullmatch(entry.strip())
            try:
                host, address = _parse_host(parts["host"] if parts else "")
                port = int(parts["port"]) if parts and parts["port"] else None
            except ToolCallRefused:
                raise ValueError(
                    f"{entry!r} is no host, host:port or network such as 10.0.0.0/8"
                ) from None
            if address is None:
                hosts.add((host, port))
            else:
                networks.append((ip_network(address), port))
        return cls(frozenset(hosts), tuple(networks))

    def allows_host(self, target: FetchTarget) -> bool:
        """Return whether the name is listed, whatever it resolves to."""
        return (target.host, None) in self.hosts or (target.host, target.port) in self.hosts

    def allows_address(self, address: IpAddress, port: int) -> bool:
        """Return whether the address may be connected to."""
        return any(
            address in network and wanted in (None, port) for network, wanted in self.networks
        )

    def allows_port(self, target: FetchTarget) -> bool:
        """Return whether the port is listed with the host."""
        if (target.host, target.port) in self.hosts:
            return True
        address = target.address
        return address is not None and any(
            address in one and port == target.port for one, port in self.networks
        )


def parse_url(url: str) -> FetchTarget:
    """Parse a URL. Raises ToolCallRefused; the result is not checked yet."""
    text = url.strip()
    if len(text) > MAX_URL_CHARS:
        raise ToolCallRefused(f"The URL is longer than {MAX_URL_CHARS} characters.")
    if any(character <= " " or character == "\x7f" for character in text):
        raise ToolCallRefused(
            "A URL has no white space and no control characters; write them as %20 and the like."
        )
    try:
        parts = urlsplit(text)
        path = quote(parts.path, safe=_SAFE_PATH_CHARS) or "/"
        query = f"?{quote(parts.query, safe=_SAFE_PATH_CHARS + '?')}" if parts.query else ""
    except ValueError:
        raise ToolCallRefused(
            "This is not a URL; write it like https://example.org/page."
        ) from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ToolCallRefused(
            "Only the web can be fetched; write the whole URL, with https:// or http://."
        )
    if "@" in parts.netloc:
        raise ToolCallRefused(
            "A URL with a user name or a password is not fetched; leave out what is before the @."
        )
    authority = _AUTHORITY.fullmatch(parts.netloc)
    if authority is None:
        raise ToolCallRefused(
            "The host of this URL cannot be read; write it like https://example.org/page."
        )
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    host, address = _parse_host(authority["host"])
    port = int(authority["port"] or (443 if scheme == "https" else 80))
    return FetchTarget(scheme=scheme, host=host, port=port, path=path + query, address=address)


def resolve_redirect(here: FetchTarget, location: str) -> FetchTarget:
    """Parse the target of a redirect. Raises ToolCallRefused."""
    try:
        joined = urljoin(here.url, location.strip())
    except ValueError:
        raise ToolCallRefused(
            f"{display_host(here)} redirects to something that is not a URL."
        ) from None
    return parse_url(joined)


def check_target(target: FetchTarget, allowed: AllowedHosts) -> None:
    """Check everything that can be checked before the name is looked up. Raises ToolCallRefused."""
    port = target.port
    if (
        port in BLOCKED_PORTS
        or not port
        or port > 65_535  # noqa: PLR2004 - TCP's own numbers
        or (port < 1024 and port not in WEB_PORTS)  # noqa: PLR2004 - the same
    ) and (not allowed.allows_port(target)):
        raise ToolCallRefused(f"Port {port} is not one of the web's; try it without a port.")
    if target.address is not None:
        check_addresses(target, [str(target.address)], allowed)
    elif not allowed.allows_host(target):
        is_internal = target.host.endswith(tuple(f".{last}" for last in INTERNAL_NAMES))
        if "." not in target.host or target.host in INTERNAL_NAMES or is_internal:
            raise _not_public_error(target)


def check_addresses(
    target: FetchTarget, addresses: Sequence[str], allowed: AllowedHosts
) -> list[str]:
    """Return the addresses of the host, once all of them may be connected to. Raises
    ToolCallRefused.

    One forbidden address is enough: a host that mixes them can choose which one is used. The
    message is the same for a name that does not exist, so that it does not reveal names of the
    local network.
    """
    if not addresses:
        raise _not_public_error(target)
    if allowed.allows_host(target):
        return list(addresses)
    for one in addresses:
        try:
            address = ip_address(one)
        except ValueError:
            raise _not_public_error(target) from None
        embedded = embedded_ipv4(address)
        is_allowed = any(
            allowed.allows_address(each, target.port)
            for each in (address, embedded)
            if each is not None
        )
        if not is_allowed and not is_public(address):
            raise _not_public_error(target)
    return list(addresses)


def display_host(target: FetchTarget) -> str:
    """Shorten the host for an error message."""
    return target.host[:MAX_SHOWN_HOST_CHARS]


def _not_public_error(target: FetchTarget) -> ToolCallRefused:
    return ToolCallRefused(
        f"{display_host(target)} has no address on the public web, and only those are fetched. Is "
        "the name right? The operator can allow others in tools.web.allow_private."
    )


def _parse_host(written: str) -> tuple[str, IpAddress | None]:
    """Return the host as it is requested, and as an address if it is one. Raises
    ToolCallRefused.
    """
    if written.startswith("["):
        try:
            address = IPv6Address(written[1:-1])
        except ValueError:
            raise ToolCallRefused("What stands in the brackets is no IPv6 address.") from None
        return str(address), address
    name = (written if written.isascii() else _to_idna(written)).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):  # noqa: PLR2004 - RFC 1035, 2.3.4
        raise ToolCallRefused("The host of this URL is no name that can be looked up.")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        try:
            return name, IPv4Address(name)
        except ValueError:
            raise ToolCallRefused("An IPv4 address is written as four decimal numbers.") from None
    return name, None


def _to_idna(name: str) -> str:
    """Encode a non-ASCII name for DNS (RFC 5891, mapped first by UTS 46). Raises
    ToolCallRefused.
    """
    import idna  # noqa: PLC0415 - large tables, and most names need none

    try:
        return idna.encode(name, uts46=True).decode()
    except (idna.IDNAError, UnicodeError):
        raise ToolCallRefused("The host of this URL is no name that can be looked up.") from None


def _parse_network(entry: str) -> IpNetwork | None:
    """Return the network or address; None: the entry is a host. Raises ValueError for what can be
    neither.
    """
    try:
        return ip_network(entry.strip(), strict=False)
    except ValueError:
        if "/" in entry:
            raise ValueError(f"{entry!r} is no network such as 10.0.0.0/8") from None
        return None


def is_loopback_host(host: str) -> bool:
    """Return whether only this machine reaches this host, a name or an address (of IPv6 with or
    without brackets).
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_private_host(host: str) -> bool:
    """Return whether only this machine's network has this host: an address that is not public, or
    a name that public DNS does not have, e.g. of a container.
    """
    host = host.lower().strip("[]")
    try:
        return not is_public(ip_address(host))
    except ValueError:
        return "." not in host or host.endswith(_PRIVATE_NAMES)


_PRIVATE_NAMES: Final = (".local", ".lan", ".localhost", ".internal", ".home.arpa")
"""RFC 6762, RFC 6761, RFC 8375, and ICANN's resolution 2024.07.29.06 on `.internal`."""
