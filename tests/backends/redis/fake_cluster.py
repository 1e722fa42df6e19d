"""A fake cluster: which node has each slot, and what each node knows of that."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from aiorwlock_remote.backends.redis.cluster.slots import SLOTS, slot_of
from tests.backends.redis.fake_server import Line, Server, bulk, push

Address = tuple[str, int]

HOST = "h"
TAGS = (b"a", b"b", b"")
"""Two slots, and all others."""
CLIENT_ID = b"client"

_TAG_OF = {slot_of(tag): tag for tag in TAGS[:2]}
_BORDERS = sorted({0, SLOTS, *_TAG_OF, *(slot + 1 for slot in _TAG_OF)})


def tag_of(key: bytes) -> bytes:
    return _TAG_OF.get(slot_of(key), b"")


class Truth:
    """What is the case, whoever knows of it."""

    def __init__(self, count: int) -> None:
        self.nodes: list[Node] = [Node(self, number) for number in range(count)]
        self.owner: dict[bytes, Node] = dict.fromkeys(TAGS, self.nodes[0])
        self.moving: dict[bytes, str] = {}
        """How the owners of these refuse what is asked of them."""
        self.done: list[tuple[bytes, int]] = []
        self.wakeups = 0
        """How often the waiters were woken to ask again."""
        self.written: dict[int, int] = {}
        """By the number of a request, how often when it was last written."""
        self.unheard: dict[bytes, int] = {}
        """By key, the last request, if its channel was not heard before it."""
        self.port_states: defaultdict[Address, str] = defaultdict(lambda: "open")
        for tag, node in zip(TAGS, self.nodes, strict=False):
            self.owner[tag] = node
        self.tell()

    def at(self, address: Address) -> Node | None:
        """Who is to be met there."""
        return next((node for node in self.nodes if node.address == address), None)

    def lines(self) -> list[Line]:
        """Those that may still say something, of who is awake."""
        return [
            line
            for node in self.nodes
            if not node.asleep
            for line in node.lines
            if not line.killed
        ]

    def begin_move(self, tag: bytes, refusal: str) -> None:
        self.moving[tag] = refusal

    def move(self, tag: bytes, to: Node) -> None:
        """The slot goes, with all that is in it; these two nodes know.

        Whoever gets it has long read what came over connections that are lost.
        """
        old, self.owner[tag] = self.owner[tag], to
        self.moving.pop(tag, None)
        if old is to:
            return
        old.no_more(tag)
        for line in to.lines:
            line.killed = line.killed or not line.open
        old.view[tag] = to.view[tag] = to.address

    def tell(self) -> None:
        """Everybody knows."""
        for node in self.nodes:
            node.view = {tag: owner.address for tag, owner in self.owner.items()}


class Node(Server):
    """Carries out what is for its slots, and sends others to where it believes."""

    def __init__(self, truth: Truth, number: int) -> None:
        super().__init__()
        self.truth = truth
        self.address: Address = (HOST, number)
        self.view: dict[bytes, Address | None] = {}
        self.asleep = False
        self.terse = False
        """Whether it leaves out its own host where it names it."""
        self.carried: defaultdict[int, set[int]] = defaultdict(set)
        """By line, the numbers of what it has carried out."""

    def is_asked(self, line: Line, number: int) -> None:
        del line
        self.truth.written[number] = self.truth.wakeups

    def no_more(self, tag: bytes) -> None:
        """The subscribers of the slot's channels learn that no more comes."""
        for line in self.lines:
            for channel in sorted(line.channels):
                if channel.endswith(CLIENT_ID) and tag_of(channel) == tag:
                    line.channels.discard(channel)
                    if not line.killed:
                        line.answers += push(b"sunsubscribe", bulk(channel), b":0\r\n")

    def refusal(self, key: bytes, *, may_move: bool = False) -> bytes:
        """Why it does nothing with this key, if it does not."""
        tag = tag_of(key)
        if self.truth.owner[tag] is self:
            why = "" if may_move else self.truth.moving.get(tag, "")
            return b"-%b\r\n" % why.encode() if why else b""
        there = self.view[tag]
        if there is None or there == self.address:
            return b"-CLUSTERDOWN Hash slot not served\r\n"
        host = "" if self.terse else there[0]
        return b"-MOVED %d %b:%d\r\n" % (slot_of(key), host.encode(), there[1])

    def _evalsha(self, line: Line, command: list[bytes]) -> bytes:
        return self.refusal(command[3]) or super()._evalsha(line, command)

    def _eval(self, line: Line, command: list[bytes]) -> bytes:
        key, number = command[3], int(command[4])
        refusal = self.refusal(key)
        if refusal:
            return refusal
        answer = super()._eval(line, command)
        self.truth.done.append((key, number))
        self.carried[line.number].add(number)
        self.truth.unheard.pop(key, None)
        if key + CLIENT_ID not in line.channels:
            self.truth.unheard[key] = number
        return answer

    def _look(self, _: Line, command: list[bytes]) -> bytes:
        return self.refusal(command[1]) or b":%b\r\n" % command[2]

    def _wait(self, line: Line, command: list[bytes]) -> bytes:
        """One replica, if this is where it was carried out."""
        return b":%d\r\n" % (int(command[1]) in self.carried[line.number])

    def _ssubscribe(self, line: Line, command: list[bytes]) -> bytes:
        refusal = self.refusal(command[1], may_move=True)
        if refusal:
            return refusal
        line.channels.add(command[1])
        return push(b"ssubscribe", bulk(command[1]), b":1\r\n")

    def _sunsubscribe(self, line: Line, command: list[bytes]) -> bytes:
        refusal = self.refusal(command[1], may_move=True)
        if refusal:
            return refusal
        line.channels.discard(command[1])
        return push(b"sunsubscribe", bulk(command[1]), b":0\r\n")

    def _cluster(self, _: Line, command: list[bytes]) -> bytes:
        assert command[1:] == [b"SLOTS"]
        entries: list[bytes] = []
        for first, end in pairwise(_BORDERS):
            owner = self.view[_TAG_OF.get(first, b"")]
            if owner is not None:
                others = [n.address for n in self.truth.nodes if n.address != owner]
                there = b"".join(map(self._named, (owner, *others)))
                size = 3 + len(others)
                entries.append(
                    b"*%d\r\n:%d\r\n:%d\r\n%b" % (size, first, end - 1, there)
                )
        return b"*%d\r\n%b" % (len(entries), b"".join(entries))

    def _named(self, address: Address) -> bytes:
        host = b"$-1\r\n" if self.terse else bulk(address[0].encode())
        return b"*3\r\n%b:%d\r\n%b" % (host, address[1], bulk(b"%d" % address[1]))
