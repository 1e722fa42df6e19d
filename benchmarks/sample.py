"""One measured number, with what it takes to compare it."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Sample:
    """``metric`` names the unit of ``value``, too."""

    loop: str
    scenario: str
    metric: str
    family: str
    peer: str
    repetition: int
    value: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)
