"""How long certificates are good. Pure."""

from typing import Final

from gateway.probes.base import Finding

EXPIRES_SOON_S: Final = 7 * 86_400.0
"""Whoever renews by itself has done so long before (Let's Encrypt: 30 days)."""


def judge_certificate(server: str, left_s: float, *, where: str) -> Finding:
    """`left_s`: until it is over."""
    days = left_s / 86_400
    if left_s < EXPIRES_SOON_S:
        return Finding(
            code="net.tls.soon",
            level="warning",
            what=f"the certificate of {server} is good for {days:.1f} more days",
            fix="whoever runs the server should renew it now, and see why that did not happen by itself",
            where=where,
        )
    told = f"{server} speaks TLS, and its certificate is good for {days:.0f} days"
    return Finding(code="net.tls.ok", level="ok", what=told, where=where)
