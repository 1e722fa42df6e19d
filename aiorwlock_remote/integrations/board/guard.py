"""Which requests the live page answers: hosts, origins; and its headers.

The page has no authentication. These checks keep *other web sites* out, whose scripts
run in the browser of a person who can reach the page.

None of them needs a secret, so every process of an application answers alike. What the
page sends to end a grant, another site cannot send:

- Browsers put the origin of the script into ``Origin``, and no script can write it. It
  has to be the host of the request, and that one of the board's names, which keeps a
  name out that a site lets point here (DNS rebinding).
- A header of the page's own and a body of JSON: a form can send neither, and a script
  of another origin only after a preflight, which the board refuses. This holds where
  ``Origin`` differs in its scheme alone: ``http://ops.example`` in the hands of
  an attacker on the way.
- ``Sec-Fetch-Site``, where the browser sends it: also if the application around the
  board answers preflights for all origins.

A token in the page would add nothing: who can read it has the page's origin, and passes
all of these.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiorwlock_remote.core.text import MAX_REASON
from aiorwlock_remote.errors import ConfigurationError

PAGE_HEADER = "x-rwlock-board"
MAX_BODY = 10_000
"""Bytes in the longest request to end a grant."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Headers of every response."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered, and the HTTP status of that."""

    status: int
    why: str


@dataclass(frozen=True, slots=True)
class BreakRequest:
    """What a viewer wants to end: a holder of a row, as seen on the page, and why.

    ``row``: the key of the resource, which is the same in every process.
    """

    row: str
    holder: str
    fence: str | None
    reason: str


def check_request(headers: Mapping[str, str], hosts: Collection[str]) -> Refusal | None:
    """Return why a request is refused, or None.

    Args:
        headers: Of the request, with names in lower case.
        hosts: Names under which the page may be reached, beside localhost and
            addresses; ``"*"``: any name.
    """
    # DNS rebinding: a site lets its own name point to this machine, and its scripts
    # read the page as their own. Such a request names the site in Host; an address
    # cannot be rebound (test_hosts).
    if not is_known_host(headers.get("host", ""), hosts):
        return Refusal(421, "this host name is not one of the board's")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        navigates = headers.get("sec-fetch-mode") == "navigate"
        # A link from elsewhere may open the page itself.
        if not navigates:
            return Refusal(403, "a request of another web site")
    return None


def is_known_host(given: str, hosts: Collection[str]) -> bool:
    """Return whether a ``Host`` header names an address, localhost or one of hosts."""
    try:
        name = urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return False
    name = name.rstrip(".")
    if not name:
        return False
    if "*" in hosts or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in {host.lower().rstrip(".") for host in hosts}
    return True


def check_break(headers: Mapping[str, str]) -> Refusal | None:
    """Return why a request to end a grant is refused, or None.

    It has to come from the page itself; see this module.
    """
    _, _, origin = headers.get("origin", "").partition("://")
    if not origin or origin.lower() != headers.get("host", "").lower():
        return Refusal(403, "a request of another web site, or of no page")
    if not headers.get(PAGE_HEADER):
        return Refusal(403, "a request of no page of the board")
    if headers.get("content-type", "").partition(";")[0] != "application/json":
        return Refusal(415, "JSON is wanted")
    return None


def read_break(body: bytes) -> BreakRequest:
    """Return what the body of a request wants to end.

    Raises:
        ConfigurationError: The body cannot be read, or gives no reason.
    """
    try:
        given = json.loads(body)
        row, holder, fence = given["row"], given["holder"], given["fence"]
        reason = given["reason"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ConfigurationError(
            what="the request is not what the page sends"
        ) from None
    texts = [row, holder, reason, *([] if fence is None else [fence])]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(what="the request is not what the page sends")
    reason = reason.strip()
    if not reason or len(reason) > MAX_REASON:
        raise ConfigurationError(what=f"say why, in at most {MAX_REASON} characters")
    return BreakRequest(row, holder, fence, reason)
