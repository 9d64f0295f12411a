"""Names for events that the platform does not name."""

from datetime import datetime

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ENTROPY_BYTES = 10


def ulid(now: datetime, entropy: bytes) -> str:
    """26 characters, sorted by time, unique without coordination: https://github.com/ulid/spec.

    `entropy` is 10 random bytes.
    """
    number = (int(now.timestamp() * 1000) << 80) | int.from_bytes(entropy[:ENTROPY_BYTES], "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
