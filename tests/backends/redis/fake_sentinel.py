"""Fake servers, one of them the primary, and fake Sentinels that name the primary."""

from __future__ import annotations

from hiredis import pack_command

from tests.backends.redis.fake_server import MORE, Line, Server, bulk
from tests.backends.redis.fake_sockets import Plug

Address = tuple[str, int]

NAME = "shop"
SERVERS = 3
REPLICA = "READONLY a replica"
TAKEN = b"-NOAUTH Authentication required.\r\n"
SAYINGS = {
    "locked": TAKEN,
    "strange": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "odd": b"*3\r\n:1\r\n:2\r\n:3\r\n",
    "broken": b"-ERR out of order\r\n",
    "no sentinel": b"-ERR unknown command 'SENTINEL', with args beginning with: \r\n",
}
"""What a Sentinel that is not well says to everything."""
MOODS = ("", "asleep", "slow", "hangs up", "secretive", *SAYINGS)


class Watched(Server):
    """A server of the primary's or a replica's; it knows itself which."""

    def __init__(self, truth: Truth, number: int) -> None:
        super().__init__()
        self.truth = truth
        self.number = number
        self.address: Address = (f"10.1.0.{number}", 6379)
        self.name: Address = (f"redis{number}", 6379)
        self.port_state = "open"
        self.locked = False
        self.asleep = False
        self.refused: set[Line] = set()
        """The clients that learned that it is a replica."""

    def is_asked(self, line: Line, number: int) -> None:
        super().is_asked(line, number)
        assert line not in self.refused, "it said that it is a replica"
        assert self.truth.asked.setdefault(number, line) is line, "sent twice"

    @property
    def is_replica(self) -> bool:
        return self.mood == REPLICA

    def obeys(self, *, kills: bool) -> None:
        """It is a replica from now on; its clients are disconnected, perhaps."""
        self.mood = REPLICA
        if kills:
            for line in self.lines:
                line.killed = True
                line.abort()

    def _info(self, _: Line, __: list[bytes]) -> bytes:
        return bulk(b"run_id:%d.%d\r\n" % (self.number, self.run))

    def _hello(self, line: Line, command: list[bytes]) -> bytes:
        if self.locked:
            return TAKEN
        if self.is_replica:
            self.refused.add(line)
        return super()._hello(line, command)


class Truth:
    """What is the case, whoever knows of it."""

    def __init__(self) -> None:
        self.servers = [Watched(self, number) for number in range(SERVERS)]
        self.primary = self.servers[0]
        for replica in self.servers[1:]:
            replica.mood = REPLICA
        self.epoch = 1
        self.sentinels = [
            Sentinel(self, address)
            for address in (("10.2.0.1", 26379), ("10.2.0.2", 5000), ("guard", 26379))
        ]
        self.asked: dict[int, Line] = {}
        """By the number of a request, over which line it went."""

    def at(self, address: Address) -> Watched:
        """Who is to be met there."""
        (found,) = (s for s in self.servers if address in {s.address, s.name})
        return found

    def fail_over(self, to: Watched) -> None:
        """Nobody learns of it, not even the old one."""
        self.primary = to
        self.epoch += 1
        to.mood = ""
        to.locked = False


class Sentinel:
    """Tells where it believes the primary to be."""

    def __init__(self, truth: Truth, address: Address) -> None:
        self.truth = truth
        self.address = address
        self.port_state = "open"
        self.mood = ""
        self.by_name = False
        """Whether it calls servers by their names."""
        self.plugs: list[Plug] = []
        self.learns()

    @property
    def is_named(self) -> bool:
        """Whether its address is to be looked up."""
        return self.address[0].isalpha()

    def learns(self) -> None:
        """What is the case."""
        self.view: tuple[int, Watched] | None = self.truth.epoch, self.truth.primary

    def is_well(self) -> None:
        self.port_state, self.mood = "open", ""
        self.says_on()

    def says_on(self) -> None:
        """Whatever it was asked and has not said yet."""
        for plug in self.plugs:
            self.answers(plug, slow=False)

    def answers(self, plug: Plug, *, slow: bool | None = None) -> None:
        """What has come over it."""
        if self.mood == "hangs up":
            plug.hung_up()
            return
        if slow is None:
            slow = self.mood == "slow"
        if self.mood != "asleep":
            while (question := plug.read.gets()) is not MORE:
                plug.unsaid += self.answer(question)
            if not slow:
                plug.deliver(len(plug.unsaid))

    def answer(self, question: list[bytes]) -> bytes:
        if self.mood in SAYINGS:
            return SAYINGS[self.mood]
        assert question[0] == b"SENTINEL"
        assert question[2] == NAME.encode()
        master = question[1] == b"MASTER"
        if self.view is None:
            return b"-ERR No such master with that name\r\n" if master else b"*-1\r\n"
        if master and self.mood == "secretive":
            return b"-NOPERM no SENTINEL MASTER\r\n"
        epoch, server = self.view
        if master:
            return packed("name", NAME, "config-epoch", str(epoch))
        host, port = server.name if self.by_name else server.address
        return packed(host, str(port))


def packed(*words: str) -> bytes:
    """An array of strings, as a server writes it."""
    said: bytes = pack_command(words)  # type: ignore[arg-type]
    return said
