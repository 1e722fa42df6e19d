"""What a judge must let pass, and what it must find: small histories made by hand."""

from __future__ import annotations

from aiorwlock_remote.testing.history import (
    Access,
    Ask,
    Event,
    Granted,
    Released,
    Unknown,
)
from tests.judge.handmade import MS, died, lost, releasing, session

JUST: dict[str, list[Event]] = {
    "writers one after another": [
        *session("a", "W", 10, fence=1, serials=[1, 2], left=20),
        *session("b", "W", 25, fence=2, serials=[3, 4], left=30),
    ],
    "readers together, then a writer": [
        *session("a", "R", 10, fence=1, serials=[1, 3], left=20),
        *session("b", "R", 11, fence=1, serials=[2, 4], left=22),
        *session("w", "W", 25, fence=2, serials=[5], left=30),
    ],
    "a waiter granted while the release is under way": [
        *session("a", "W", 10, fence=1, left=20),
        *session("b", "W", 20, asked=5, fence=2, left=30),
    ],
    "expired, nobody released": [
        *session("a", "W", 10, fence=1, until=100),
        *session("b", "W", 101, fence=2),
    ],
    "released late, and known so": [
        *session("a", "W", 10, fence=1, until=100, left=150, ok=False),
        *session("b", "W", 110, fence=2, until=205, left=160),
    ],
    "the outcome of a release is not known": [
        *session("a", "W", 10, fence=1, left=20, ok=None),
        *session("b", "W", 22, fence=2, left=30),
    ],
    "killed, the successor enters when the deadline has passed": [
        *session("a", "W", 10, fence=1, until=100),
        died("a", 20),
        *session("b", "W", 101, fence=2),
    ],
    "killed while releasing": [
        *session("a", "W", 10, fence=1, until=100),
        releasing("a", 20, 100),
        died("a", 30),
        *session("b", "W", 25, fence=2),
    ],
    "lost before the deadline, and known to be": [
        *session("a", "W", 10, fence=1, until=100),
        lost("a", 40),
        *session("b", "W", 45, fence=2),
    ],
    "stale access refused": [
        *session("a", "W", 10, fence=1, until=100, serials=[1]),
        *session("b", "W", 110, fence=2, serials=[2], left=120),
        Access("a", "catalog,7", "a", 130 * MS, "W", 1, 2, None, 100 * MS),
    ],
    "a reader's session goes on among readers": [
        *session("a", "R", 10, fence=1, serials=[1, 5], left=20),
        *session("b", "R", 11, fence=1, serials=[2, 3, 4], left=22),
    ],
    "fences of two waiters granted in another order than they asked": [
        *session("a", "W", 30, asked=1, until=130, fence=2, left=40),
        *session("b", "W", 10, asked=2, fence=1, left=20),
    ],
    "a reply after the deadline": [
        *session("a", "W", 150, asked=10, until=100, fence=1, left=160, ok=False),
        *session("b", "W", 120, fence=2, left=155),
    ],
    "never expires, released in the end": [
        *session("a", "W", 10, fence=1, forever=True, serials=[1], left=900),
        *session("b", "W", 905, fence=2),
    ],
    "the outcome of an acquire is not known": [
        Unknown("a", "catalog,7", "a", 20 * MS, 9 * MS),
        *session("b", "W", 15, fence=2, left=30),
    ],
    "not known to be granted, but released": [
        Ask("a", "catalog,7", "a", 9 * MS, "W"),
        Unknown("a", "catalog,7", "a", 20 * MS, 9 * MS),
        releasing("a", 25, 100),
        Released("a", "catalog,7", "a", 26 * MS, 25 * MS, ok=True),
        *session("b", "W", 28, fence=2, left=30),
    ],
    "asked in the instant in which the other was granted": [
        *session("a", "R", 10, fence=2, left=20),
        *session("b", "R", 12, asked=10, fence=1, left=20),
    ],
    "a deadline that was over before": [
        *session("a", "W", 10, fence=1, until=5),
        *session("b", "W", 15, fence=2),
    ],
    "other names are other locks": [
        *session("a", "W", 10, fence=2, serials=[1], left=20),
        Granted("b", "catalog,8", "b", 15 * MS, 14 * MS, "W", 1, 99 * MS),
        Access("b", "catalog,8", "b", 16 * MS, "W", 1, 1, 1, 99 * MS),
    ],
}

FAULTY_BY_KIND: dict[str, dict[str, list[Event]]] = {
    "exclusion": {
        "two writers": [
            *session("a", "W", 10, fence=1, left=50),
            *session("b", "W", 30, fence=2, left=60),
        ],
        "a reader inside a writer": [
            *session("a", "W", 10, fence=1, left=50),
            *session("b", "R", 30, fence=2, left=60),
        ],
        "a writer inside readers, one of whom has left": [
            *session("a", "R", 10, fence=1, left=60),
            *session("b", "R", 11, fence=1, left=20),
            *session("w", "W", 30, fence=2, left=40),
        ],
        "a grant before the deadline of one that did not release": [
            *session("a", "W", 10, fence=1, until=100),
            *session("b", "W", 50, fence=2),
        ],
        "a grant before the deadline renewed last": [
            *session("a", "W", 10, fence=1, until=100),
            Access("a", "catalog,7", "a", 50 * MS, "W", 1, 1, 1, 150 * MS),
            Access("a", "catalog,7", "a", 60 * MS, "W", 1, 2, 2, 110 * MS),
            *session("b", "W", 120, fence=2),
        ],
        "a grant before the deadline of a killed holder": [
            *session("a", "W", 10, fence=1, until=100),
            died("a", 20),
            *session("b", "W", 90, fence=2),
        ],
        "a grant before its holder lost it": [
            *session("a", "W", 10, fence=1, until=100),
            lost("a", 60),
            *session("b", "W", 50, fence=2),
        ],
        "a grant beside one that never expires": [
            *session("a", "W", 10, fence=1, forever=True),
            *session("b", "W", 90_000, fence=2),
        ],
        "alive beyond its deadline when released, yet another was let in": [
            *session("a", "W", 10, fence=1, until=100, left=150, ok=True),
            *session("b", "W", 120, fence=2, left=160),
        ],
    },
    "fence": {
        "a fence that goes back": [
            *session("a", "W", 10, fence=5, left=20),
            *session("b", "W", 30, fence=4, left=40),
        ],
        "a fence that goes back among readers": [
            *session("a", "R", 10, fence=5, left=20),
            *session("b", "R", 30, fence=4, left=40),
        ],
        "a fence that goes back later": [
            *session("a", "W", 10, fence=5, left=20),
            *session("b", "W", 30, fence=6, left=40),
            *session("c", "R", 50, fence=5, left=60),
        ],
        "equal fences of two writers": [
            *session("a", "W", 10, fence=5, left=20),
            *session("b", "W", 30, fence=5, left=40),
        ],
        "a reader with the fence of a writer": [
            *session("a", "W", 10, fence=5, left=20),
            *session("b", "R", 30, fence=5, left=40),
        ],
        "a writer with the fence of readers": [
            *session("a", "R", 10, fence=5, left=20),
            *session("b", "R", 11, fence=5, left=21),
            *session("c", "W", 30, fence=5, left=40),
        ],
    },
    "isolation": {
        "a foreign write in a writer's session": [
            *session("a", "W", 10, fence=1, until=100, serials=[1, 3]),
            *session("b", "W", 110, fence=2, serials=[2]),
        ],
        "a foreign read in a writer's session": [
            *session("a", "W", 10, fence=1, until=100, serials=[1, 3]),
            *session("b", "R", 110, fence=2, serials=[2]),
        ],
        "a foreign write in a reader's session": [
            *session("a", "R", 10, fence=1, until=100, serials=[1, 3, 4]),
            *session("b", "W", 110, fence=2, serials=[2]),
        ],
    },
    "garbage": {
        "an access by one never granted": [
            *session("a", "W", 10, fence=1, left=20),
            Access("b", "catalog,7", "b", 15 * MS, "W", 1, 1, 1, None),
        ],
        "an access with another fence than granted": [
            *session("a", "W", 10, fence=1, left=20),
            Access("a", "catalog,7", "a", 15 * MS, "W", 2, 1, 1, 100 * MS),
        ],
        "a write by a reader": [
            *session("a", "R", 10, fence=1, left=20),
            Access("a", "catalog,7", "a", 15 * MS, "W", 1, 1, 1, 100 * MS),
        ],
        "two accesses in one place": [
            *session("a", "R", 10, fence=1, serials=[1, 2], left=20),
            *session("b", "R", 11, fence=1, serials=[2], left=20),
        ],
        "one attempt granted twice": [
            *session("a", "R", 10, fence=1),
            *session("a", "R", 11, fence=1),
        ],
    },
}
"""By the kind of violation."""

FAULTY: dict[str, tuple[str, list[Event]]] = {
    name: (kind, events)
    for kind, cases in FAULTY_BY_KIND.items()
    for name, events in cases.items()
}
