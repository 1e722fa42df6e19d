"""From a client's first packet to the end of its login."""

from __future__ import annotations

from typing import Protocol

from tests.servers.oracle import login
from tests.servers.oracle.channel import Channel, Hangup
from tests.servers.oracle.errors import OracleError
from tests.servers.oracle.framing import Framing, Kind, acceptance, refusal
from tests.servers.oracle.profiles import SERVICES, Profile
from tests.servers.oracle.replies import Replies

_NO_SUCH_SERVICE = 12514


class Users(Protocol):
    """Who may log in."""

    def password(self, user: str) -> str:
        """Its password; one that nobody knows for a user that is none."""

    def refuses(self, user: str) -> OracleError | None:
        """Why it may not, although it knows its password."""


async def connect(framing: Framing) -> Profile:
    """The profile of the service the client asks for; ``Hangup`` if there is none."""
    packet = await framing.read()
    if packet.kind != Kind.CONNECT:
        raise Hangup
    body = packet.body
    size, offset = (int.from_bytes(body[at : at + 2], "big") for at in (16, 18))
    text = body[offset - 8 : offset - 8 + size]
    if len(text) < size:  # too long for this packet
        text = (await framing.read()).body[2:]
    asked = text.decode(errors="replace").upper()
    profile = next(
        (p for service, p in SERVICES.items() if f"SERVICE_NAME={service})" in asked),
        None,
    )
    if profile is None:
        framing.send(Kind.REFUSE, refusal(_NO_SUCH_SERVICE))
        await framing.drain()
        raise Hangup
    wanted = int.from_bytes(body[50:54], "big") if len(body) >= 54 else 8192
    framing.size = min(max(wanted, 512), 65535)
    accepted = acceptance(
        profile.network,
        framing.size,
        fast=profile.fast_login,
        ends=profile.ends_responses,
    )
    framing.send(Kind.ACCEPT, accepted)
    framing.accepted = profile.network >= 315
    return profile


async def log_in(
    channel: Channel, profile: Profile, users: Users, replies: Replies
) -> tuple[str, login.Proof]:
    """The user, and what proves to it that the server knows its password.

    ``Hangup`` when it was refused.
    """
    asked, head = await _introduced(channel, profile)
    user = asked.user.upper()
    proof = login.Proof(users.password(user))
    challenge = replies.parameters(proof.challenge())
    await channel.send(head + challenge + replies.status())
    answer = await channel.read(lambda r: login.read_login(r, profile.fields))
    refused = None if proof.holds(answer.values) else login.REFUSED
    if refused := refused or users.refuses(user):
        await channel.send(replies.end(refused))
        raise Hangup
    return user, proof


async def _introduced(channel: Channel, profile: Profile) -> tuple[login.Login, bytes]:
    """Who the client says it is, and what is still to be sent to it."""
    if profile.fast_login:
        channel.framing.ends_responses = profile.ends_responses
        asked = await channel.read(login.read_fast_login)
        return asked, login.protocol(profile.fields) + login.TYPES
    await channel.read(login.read_protocol)
    await channel.send(login.protocol(profile.fields))
    await channel.read(login.read_types)
    await channel.send(login.TYPES)
    return await channel.read(lambda r: login.read_login(r, profile.fields)), b""


def welcome(
    session: int, profile: Profile, proof: login.Proof, replies: Replies
) -> bytes:
    """What is sent to a client that has logged in."""
    facts = {
        "AUTH_VERSION_NO": str(profile.number),
        "AUTH_SVR_RESPONSE": proof.answer(),
        "AUTH_SESSION_ID": str(session),
        "AUTH_SERIAL_NUM": "1",
        "AUTH_SC_SERVICE_NAME": profile.service,
        "AUTH_SC_DBUNIQUE_NAME": "DOUBLE",
        "AUTH_INSTANCENAME": "double",
        "AUTH_MAX_OPEN_CURSORS": "300",
        "AUTH_MAX_IDEN_LENGTH": "128",
    }
    parameters = replies.parameters({name: (text, 0) for name, text in facts.items()})
    return parameters + replies.status()
