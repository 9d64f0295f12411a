"""Which addresses are on the public Internet. Pure.

The lists are those of IANA's registries of special-purpose addresses (www.iana.org/assignments,
iana-ipv4-special-registry and iana-ipv6-special-registry), written out: what `ipaddress` counts as global has changed
between releases of Python.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

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
"""All that has been given to anybody (RFC 4291, 2.4); loopback, local and multicast addresses are not in it."""
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
"""How a network without IPv4 reaches it (RFC 6052)."""
_ISATAP: Final = 0x0000_5EFE
_ISATAP_BITS: Final = 0xFCFF_FFFF
"""In front of an IPv4 address at the end (RFC 5214, 6.1); two bits say what kind that one is."""


def embedded_ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a connection to this one ends at, if it is only another way to write that."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else None


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether anybody on the Internet could connect to it as well."""
    inside = embedded_ipv4(address)
    if inside is not None:
        return is_public(inside)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_4)
    if address.scope_id is not None or address not in GLOBAL_UNICAST_6:
        return False
    if (int(address) >> 32) & _ISATAP_BITS == _ISATAP:
        return False
    return not any(address in network for network in NOT_PUBLIC_6)
