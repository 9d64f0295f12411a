"""What is so about the machine, the container and the service. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.probes.base import Finding

BASE_BYTES: Final = 160_000_000
"""What a gateway with three platforms takes, with room to spare (README, figures)."""
EMBEDDED_BYTES: Final = 300_000_000
"""And the embedded model beside it (facts, section 10)."""
MIN_OPEN_FILES: Final = 256
"""Open at once: sockets of channels, models and readers, files of the store and of tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineObservation:
    """As it was found."""

    limit_bytes: int | None
    """What this process' group may have of memory. None: no limit."""
    available_bytes: int | None
    """Free now. None: not known."""
    open_files: int
    container: str
    """Which kind; empty: none."""
    layered: str
    """The path of the store, where it is in the container's own layer; empty: it is not."""
    units: Mapping[str, int | None]
    """systemd's units of ours, and what memory each may have."""


def judge_machine(seen: MachineObservation, *, embedded: bool) -> Iterator[Finding]:
    """Whether there is room to run. `embedded`: the model runs here, too."""
    need = BASE_BYTES + (EMBEDDED_BYTES if embedded else 0)
    limits = {"this container or service": seen.limit_bytes, **seen.units}
    tight = {name: limit for name, limit in limits.items() if limit is not None and limit < need}
    for name, limit in tight.items():
        yield Finding(
            code="machine.memory_limit",
            level="warning",
            what=(
                f"{name} may have {_format_mb(limit)} of memory, and a gateway like this needs about {_format_mb(need)}"
            ),
            fix=f"raise the limit to {_format_mb(2 * need)} (compose: mem_limit; systemd: MemoryMax)",
        )
    if seen.available_bytes is not None and seen.available_bytes < need:
        yield Finding(
            code="machine.memory",
            level="warning",
            what=(
                f"{_format_mb(seen.available_bytes)} of memory are free, and a gateway like this needs "
                f"about {_format_mb(need)}"
            ),
            fix="end other programs, or add memory",
        )
    elif not tight and seen.available_bytes is not None:
        yield Finding(code="machine.memory", level="ok", what=f"{_format_mb(seen.available_bytes)} of memory are free")
    if seen.open_files < MIN_OPEN_FILES:
        yield Finding(
            code="machine.files",
            level="warning",
            what=f"a process may have {seen.open_files} files open, and a gateway may need {MIN_OPEN_FILES}",
            fix="raise it (ulimit -n 1024; systemd: LimitNOFILE=1024)",
        )
    if seen.layered:
        yield Finding(
            code="machine.volume",
            level="warning",
            what=f"the store is in the {seen.container} container's own layer, and goes with the container",
            fix="mount a volume there (docker run -v reverie-data:/DIRECTORY ..., or volumes: in compose)",
            where=seen.layered,
        )
    elif seen.container:
        yield Finding(code="machine.container", level="ok", what=f"this is a {seen.container} container")
    for name in seen.units:
        if name not in tight:
            yield Finding(code="machine.service", level="ok", what=f"systemd has the unit {name}")


def _format_mb(count: int) -> str:
    return f"{count / 1_000_000:.0f} MB"
