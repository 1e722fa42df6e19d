"""Cases: one name is one lock, whatever the name, the mode and the process."""

from __future__ import annotations

from uuid import UUID

import pytest

from aiorwlock_remote import ConfigurationError, LockLost
from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import MODES, lock_of

PAIRS = [(one, two) for one in MODES for two in MODES if (one, two) != ("reader",) * 2]
AWKWARD: list[tuple[str, ResourceId]] = [
    ("a,1", "x"),
    ("a", "1,x"),
    ("a", "1"),
    ("a%2C1", "x"),
    ("a{b}", "c"),
    ("a", "{b}c"),
    ("a/b", "c"),
    ("a", "b/c"),
    ("100%", "%s %d %%"),
    ("order", "o'brien; DROP TABLE x; --"),
    ("order", '"quoted" \\ back'),
    ("new\nline", "tab\t, nul\0"),
    (" order", "42"),
    ("order", "42 "),
    ("order", " 42"),
    ("*", "?[a-z]"),
    ("readers", "readers"),
    ("Readers", "readers"),
    (".", ".."),
    ("..", "."),
    ("../order", "42"),
    ("order", "42.lock"),
    ("order", "42."),
    ("order", "a" * 9),
    ("order", "a\u0301"),
    ("order", "\u00e1"),
    ("order", "\u200b42"),
    ("order", "\r\n42"),
    ("order", "$(id) `id` ; &"),
    ("order", "null"),
    ("order:42", "x"),
    ("order", ":42:x"),
    ("rw:order", "{}"),
    ("a%2F1", "x"),
    ("a", "\U0001f512"),
]


class OneNameOneLockCases(Cases):
    """One name is one lock; different names are different locks."""

    @pytest.mark.parametrize(("holds", "asks"), PAIRS)
    async def test_modes_exclude_each_other(self, holds: str, asks: str) -> None:
        """Mutex, writer and reader of one name exclude each other; readers share."""
        async with lock_of(self.locks, holds, ("thing", 1)):
            assert await lock_of(self.others, asks, ("thing", 1)).try_acquire() is None
            assert await lock_of(self.others, asks, ("thing", 1)).locked()
        await self.take_at_once(lock_of(self.others, asks, ("thing", 1)))

    @pytest.mark.parametrize(("holds", "asks"), PAIRS)
    async def test_modes_wait_for_each_other(self, holds: str, asks: str) -> None:
        """Within a process, modes that exclude each other wait for each other."""
        first = await self.actors.enters(
            lock_of(self.locks, holds, ("thing", 1)), "first"
        )
        second = await self.actors.queues(
            lock_of(self.locks, asks, ("thing", 1)), "second"
        )
        assert second.waits
        await first.hand_over_to(second)

    async def test_an_id_counts_by_its_text(self) -> None:
        """Ids 42 and "42" are one lock, as are a UUID and its text; "042" differs."""
        unique = UUID("12345678-1234-5678-1234-567812345678")
        same: list[tuple[ResourceId, ResourceId]] = [
            (42, "42"),
            (-7, "-7"),
            (2**31, str(2**31)),
            (2**70, str(2**70)),
            (unique, str(unique)),
        ]
        for one, two in same:
            async with self.locks.mutex("order", one):
                assert await self.others.mutex("order", two).locked()
            async with self.locks.mutex("order", two):
                assert await self.others.mutex("order", one).locked()
        async with self.locks.mutex("order", 42):
            for other in ("042", "+42", "42.0", "-42", " 42", "\uff14\uff12"):
                assert not await self.others.mutex("order", other).locked(), other

    async def test_awkward_names_stay_apart(self) -> None:
        """Names with special characters are distinct, and are shown as given."""
        # All at once: if two of the names were one lock, its second acquire would fail.
        held = [await self.locks.mutex(*name).acquire(timeout=0) for name in AWKWARD]
        for name in AWKWARD:
            shown = await self.others.mutex(*name).info()
            assert shown.locked
            assert (shown.resource_type, shown.resource_id) == name
        listed = [(d.resource_type, d.resource_id) async for d in self.others.list()]
        assert sorted(listed) == sorted(AWKWARD)
        for grant in held:
            await grant.release()

    async def test_case_matters(self) -> None:
        """Names that differ only in case or in an accent are different locks."""
        async with self.locks.mutex("Order", "Abc"):
            for name in (("order", "Abc"), ("Order", "abc"), ("Ordér", "Abc")):
                await self.take_at_once(self.others.mutex(*name))

    async def test_any_language(self) -> None:
        """Any Unicode text is a name; composed and decomposed letters differ."""
        for text in ("заказ", "注文", "🔒🔑", "é", "e\u0301", "ß", "ss", "\u202eabc"):
            async with self.locks.mutex(text, text) as held:
                assert held.resource == f"{text}/{text}"
                shown = await self.others.mutex(text, text).info()
                assert shown.locked
                assert shown.resource_id == text
                assert [d.resource_id async for d in self.others.list()] == [text]

    async def test_long_names(self) -> None:
        """Names of any length are distinguished up to their last character."""
        for size in (199, 200, 201, 1000, 20_000):
            one, two = "x" * size, "x" * (size - 1) + "y"
            async with self.locks.mutex(one, one):
                assert await self.others.mutex(one, one).locked()
                for name in ((one, two), (two, one)):
                    await self.take_at_once(self.others.mutex(*name))

    async def test_types_part(self) -> None:
        """The same id with another resource type is another lock."""
        async with self.locks.mutex("order", 1), self.others.mutex("invoice", 1):
            listed = [d.resource_type async for d in self.others.list("order")]
            assert listed == ["order"]

    async def test_prefixes_part(self) -> None:
        """``Locks`` with different prefixes share no lock, and list only their own."""
        async with (
            self.store.connect("eu:") as here,
            self.store.connect("us:") as there,
            self.store.connect("eu:") as same,
        ):
            async with here.mutex("order", 1), there.mutex("order", 1):
                assert await same.mutex("order", 1).try_acquire() is None
                assert len([d async for d in here.list()]) == 1
            assert [d async for d in there.list()] == []

    @pytest.mark.usefixtures("renewed_often")
    @pytest.mark.parametrize("kind", ["order", "a/b", "x" * 300])
    async def test_a_prefix_is_the_beginning_of_the_type(self, kind: str) -> None:
        """Type "order" with prefix "shop/" is type "shop/order" without a prefix.

        Each of the two ``Locks`` lists the resource by its own name.
        """
        async with self.store.connect("shop/") as shop, self.store.connect() as plain:
            short, whole = shop.mutex(kind, 1), plain.mutex(f"shop/{kind}", 1)
            first = await self.actors.enters(short, "first")
            assert await whole.try_acquire() is None
            listed = [[d async for d in one.list()] for one in (shop, plain)]
            for lock, seen in zip((short, whole), listed, strict=True):
                shown = (await lock.info()).resource_type
                assert [d.resource_type for d in seen] == [shown]
                assert shown.startswith("shop/") == (lock is whole)
            assert [d async for d in plain.list(f"shop/{kind}")]
            assert [d async for d in shop.list(kind)]
            second = await self.actors.queues(whole, "second")
            await first.leave()
            assert (await second.inside()).resource == whole.resource
            (shown_short,) = [d async for d in shop.list()]
            assert (
                await shop.force_release(shown_short, reason="seen by the short name")
                == 1
            )
            assert isinstance(await second.gone(), LockLost)

    async def test_a_prefix_is_no_type(self) -> None:
        """With prefix "shop-", the type "shop-" is not listed, and "" is refused."""
        async with self.store.connect("shop-") as shop, self.store.connect() as plain:
            async with plain.mutex("shop-", 1):
                assert [d async for d in shop.list()] == []
            with pytest.raises(ConfigurationError):
                shop.mutex("", 1)
