"""The adapter holds what every adapter must hold."""

import pytest
from kit import MatrixKit

from reverie.testing.platforms import PlatformConformance


@pytest.mark.usefixtures("homeserver")
class TestMatrix(PlatformConformance):
    kit = MatrixKit
