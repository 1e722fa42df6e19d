"""What the double says it is: the versions of Oracle whose wire it speaks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """A release as a thin client tells it from others.

    ``network`` is the version of the packet layer, ``fields`` that of the messages
    in it; every later one has more in its messages.
    """

    name: str
    service: str
    network: int
    fields: int
    release: tuple[int, int, int, int, int]
    fast_login: bool = False
    ends_responses: bool = False

    @property
    def number(self) -> int:
        """The release in one number, whose layout changed with 18c."""
        a, b, c, d, e = self.release
        if self.fields >= 11:
            return a << 24 | b << 16 | c << 12 | d << 4 | e
        return a << 24 | b << 20 | c << 12 | d << 8 | e


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        # Too old for the driver, which says so.
        Profile("11.2", "ORA112", 314, 6, (11, 2, 0, 4, 0)),
        # Taken by the driver, older than what the library is for.
        Profile("12.1", "ORA121", 315, 7, (12, 1, 0, 2, 0)),
        Profile("12.2", "ORA122", 315, 8, (12, 2, 0, 1, 0)),
        Profile("19c", "ORA19C", 318, 12, (19, 3, 0, 0, 0)),
        Profile("23ai", "FREEPDB1", 319, 24, (23, 4, 0, 24, 0), True, True),
    )
}

SERVICES: dict[str, Profile] = {p.service: p for p in PROFILES.values()}
