"""``PushedGrant``: the message that a waiting client was granted its lock.

A step that offers the resource to a queue entry with a ticket grants it for one claim
window. The client may enter on the message alone, without another request, if two
things hold (model PushedGrant):

* The message proves that its sender knows the ticket (``proves``). Channels are no
  secret, tickets are. Without the proof it is a wake-up like any other.
* The store's clock cannot have reached the end of the grant. The client's upper bound
  on that clock is the one in an earlier reply, plus the local time since that reply's
  request was *sent* (``StoreTime``). Counted from when the message came, a delay of the
  message would let two clients in (``push_unbounded``).

A waiter that polls the store may read its pushed grant there, without a message. The
read brings what the clock of its server showed, and that bound counts as well
(``seen``): the server may be another one than that of the earlier reply.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import field
from hashlib import sha1, sha256, shake_256
from hmac import compare_digest, digest

from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.value import value

# Share by which a local clock may run slower than the store's.
MAX_DRIFT = 0.01
# Part of the longest delay that is left after each further reply.
FADING = 0.8
SHA256_DIGITS = 64
SEAL_BYTES = 32


@value
class PushedGrant:
    """A message that a step pushed a grant: its fence, and from when to when it lasts.

    ``since``, ``expires``: microseconds of the store's clock. ``seen``: what the read
    that found the grant shows of that clock; None if it came by a message.
    """

    fence: int
    since: int
    expires: int
    proof: str = field(repr=False)
    seen: StoreTime | None = field(default=None, compare=False)

    @classmethod
    def of(cls, grant: Grant, seen: StoreTime | None = None) -> PushedGrant:
        """Return the message about a grant, which has an end, to its client."""
        assert grant.expires is not None, "a pushed grant has an end"
        since, expires = grant.since, grant.expires
        proof = proof_of(grant.ticket, since, expires, grant.fence)
        return cls(grant.fence, since, expires, proof, seen)

    def proves(self, ticket: str) -> bool:
        """Return whether the sender knew this ticket when it granted it."""
        # As bytes: anybody may send any text, and only ASCII can be compared as text.
        given = _bytes(self.proof)
        prove = sha256_proof_of if len(given) == SHA256_DIGITS else proof_of
        proof = prove(ticket, self.since, self.expires, self.fence)
        return compare_digest(given, proof.encode())


def proof_of(ticket: str, since: int, expires: int, fence: int) -> str:
    """Return the proof that a sender knows the ticket: 40 hex digits.

    SHA-1 is what Redis' scripts have. A ticket is 128 random bits, which no known
    attack on SHA-1 finds from its digest.
    """
    proven = _bytes(f"{ticket},{since},{expires},{fence}")
    return sha1(proven, usedforsecurity=False).hexdigest()


def sha256_proof_of(ticket: str, since: int, expires: int, fence: int) -> str:
    """Return the same proof by SHA-256, 64 hex digits, for servers that have no SHA-1.

    A server that chooses the fence itself has to make the proof as well.
    """
    return sha256(_bytes(f"{ticket},{since},{expires},{fence}")).hexdigest()


def seal(text: str, ticket: str, nonce: str) -> str:
    """Return a text that only who knows the ticket can read, and change.

    A pushed grant's message has the doorman's record, so that its client can confirm by
    one request. The record has the tickets of other clients, and messages are no
    secret. ``nonce``: never used twice with one ticket.
    """
    sealed = _xor(_bytes(text), ticket, nonce)
    return b64encode(_seal_of(sealed, ticket, nonce) + sealed).decode()


def unseal(sealed: str, ticket: str, nonce: str) -> str | None:
    """Return the text; None if it was not sealed with this ticket and nonce."""
    try:
        given = b64decode(sealed, validate=True)
    except ValueError:
        return None
    mac, rest = given[:SEAL_BYTES], given[SEAL_BYTES:]
    if not compare_digest(mac, _seal_of(rest, ticket, nonce)):
        return None
    return _xor(rest, ticket, nonce).decode("utf-8", "surrogatepass")


def _xor(data: bytes, ticket: str, nonce: str) -> bytes:
    # The keystream of an extendable hash: the standard library has no cipher.
    size = len(data)
    stream = shake_256(_key(ticket, nonce, "record")).digest(size)
    mixed = int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")
    return mixed.to_bytes(size, "big")


def _seal_of(data: bytes, ticket: str, nonce: str) -> bytes:
    return digest(_key(ticket, nonce, "seal"), data, "sha256")


def _key(ticket: str, nonce: str, use: str) -> bytes:
    return _bytes(f"{ticket},{nonce},{use}")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@value
class StoreTime:
    """What a reply said of the store's clock: it was ``now`` after ``sent_at``.

    ``now``: microseconds. ``sent_at``: local monotonic seconds, just before the request
    was sent.
    """

    now: int
    sent_at: float

    def bounds(self, pushed: PushedGrant, local: float) -> tuple[float, float]:
        """Return until when a pushed grant lasts, and how late its message is, at a
        local time, both in seconds.

        The first is a local time at which the store's clock has not reached the grant's
        end. The second is how long ago the grant was made, at most; below 0: the
        store's clock cannot show that time yet, so it is another clock.
        """
        elapsed = (local - self.sent_at) * (1 + MAX_DRIFT) * MICROS
        late = (self.now + round(elapsed) - pushed.since) / MICROS
        rest = (pushed.expires - self.now) / MICROS / (1 + MAX_DRIFT)
        return self.sent_at + rest, late


class ReplyDelays:
    """How long a process waited for its replies lately, whatever delayed them.

    The confirmation of a pushed grant must not take longer than what is left of the
    claim window. A process that sees its replies late, as its machine is overloaded,
    enters by no message until some replies in a row were on time: each lets the
    longest delay fade (test_a_process_with_late_replies_asks_instead_of_confirming).
    """

    __slots__ = ("longest",)

    def __init__(self) -> None:
        self.longest: float = 0.0
        """Seconds."""

    def note(self, seconds: float) -> None:
        """Note how long a reply took, from the sending of its request."""
        faded = FADING * self.longest
        self.longest = max(faded, seconds)
