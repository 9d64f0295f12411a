"""What every adapter of a platform must hold, and broken adapters that prove the checks.

An author writes a `Kit` of the platform, on a fake or on a real server, and a class of tests:

    from reverie.testing.platforms import Kit, PlatformConformance

    class MatrixKit(Kit): ...

    class TestMatrix(PlatformConformance):
        kit = MatrixKit

- `conformance`: `PlatformConformance`, the tests; the checks by group and name.
- `base`: `Kit`, what a platform provides for the checks; `Bench`, a kit with a running channel.
- `receive`, `send`, `lifecycle`, `actions`, `private_messages`: the checks, in groups.
- `broken_channels`: adapters that each break one rule, with the check that must find it out.
"""

from reverie.testing.platforms.base import COMMANDS as COMMANDS
from reverie.testing.platforms.base import Kit as Kit
from reverie.testing.platforms.base import Where as Where
from reverie.testing.platforms.conformance import PlatformConformance as PlatformConformance
