"""Three MySQL servers on the loopback that replicate to each other as a group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.servers.mariadb import run
from tests.servers.mysql import Mysql
from tests.servers.process import IP, free_port, until

MEMBERS = 3
GROUP = "3f6c2b1e-7a44-4d0c-9a53-0d2f5b8e1c77"
AGREES_IN = 60.0
"""Seconds."""
_COPIES_AS = "copier"
_PASSWORD = "of this test"  # noqa: S105 - of servers on the loopback
_CHANNEL = "FOR CHANNEL 'group_replication_recovery'"
_STATES = (
    "SELECT member_port, member_state, member_role"
    " FROM performance_schema.replication_group_members"
)
_BEATEN = (
    "SELECT count_conflicts_detected"
    " FROM performance_schema.replication_group_member_stats"
    " WHERE member_id = @@server_uuid"
)
_SETTINGS = {
    "enforce-gtid-consistency": "ON",
    "group-replication-group-name": GROUP,
    "group-replication-ip-allowlist": IP,
    "group-replication-recovery-get-public-key": "ON",
    "group-replication-start-on-boot": "OFF",
    "gtid-mode": "ON",
    "log-bin": "changes",
    "performance-schema": "ON",
    "plugin-load-add": "group_replication.so",
    "relay-log": "relayed",
    "replica-parallel-workers": "1",
    "report-host": IP,
    "sync-binlog": "1",
}


class GroupMember(Mysql):
    """One of the three. Its files are a copy, and its id its own."""

    def choose_ports(self) -> None:
        super().choose_ports()
        (self._home / "data" / "auto.cnf").unlink(missing_ok=True)

    def joins(self) -> None:
        """Become a member, and take over what the others have changed meanwhile."""
        run(self.root, "START GROUP_REPLICATION")

    def sees(self) -> dict[int, tuple[str, str]]:
        """State and role of each member, by port."""
        return {port: (state, role) for port, state, role in run(self.root, _STATES)}

    def beaten(self) -> int:
        """How many changes of all members were rolled back because of another's."""
        ((count,),) = run(self.root, _BEATEN)
        return int(count)


class MysqlGroup:
    """Its members, of which one is the primary, or each if ``single`` is not set."""

    def __init__(self, folder: Path, *, single: bool = True) -> None:
        ports = [free_port() for _ in range(MEMBERS)]
        addresses = [f"{IP}:{port}" for port in ports]
        self.members: list[GroupMember] = []
        try:
            for number, address in enumerate(addresses, 1):
                more = {
                    "server-id": str(number),
                    "group-replication-local-address": address,
                    "group-replication-group-seeds": ",".join(addresses),
                    "group-replication-single-primary-mode": "ON" if single else "OFF",
                    "group-replication-enforce-update-everywhere-checks": (
                        "OFF" if single else "ON"
                    ),
                }
                self._add(folder / f"member-{number}", more)
            self._begin()
        except BaseException:
            self.close()
            raise

    def _add(self, folder: Path, more: Mapping[str, str]) -> None:
        folder.mkdir()
        member = GroupMember(folder, {**_SETTINGS, **more})
        self.members.append(member)
        run(
            member.root,
            "SET SESSION sql_log_bin = OFF",
            f"CREATE USER {_COPIES_AS} IDENTIFIED BY '{_PASSWORD}'",
            f"GRANT REPLICATION SLAVE ON *.* TO {_COPIES_AS}",
            f"CHANGE REPLICATION SOURCE TO SOURCE_USER = '{_COPIES_AS}',"
            f" SOURCE_PASSWORD = '{_PASSWORD}' {_CHANNEL}",
            # What the files were made with is not of the group.
            "RESET BINARY LOGS AND GTIDS",
        )

    def _begin(self) -> None:
        first, *others = self.members
        run(first.root, "SET GLOBAL group_replication_bootstrap_group = ON")
        first.joins()
        run(first.root, "SET GLOBAL group_replication_bootstrap_group = OFF")
        for member in others:
            member.joins()
        self.together(*self.members)

    def together(self, *members: GroupMember) -> None:
        """Wait until these are the group, and agree on it."""
        ports = {member.port for member in members}

        def agreed() -> bool:
            first, *others = [member.sees() for member in members]
            online = {port for port, (state, _) in first.items() if state == "ONLINE"}
            return ports == online == first.keys() and all(
                other == first for other in others
            )

        until(agreed, f"{len(ports)} servers are the group", AGREES_IN, every=0.1)

    def primary(self, *members: GroupMember) -> GroupMember:
        """The one that these, who are the group, call so."""
        self.together(*members)
        roles = members[0].sees()
        return next(m for m in members if roles[m.port][1] == "PRIMARY")

    def make_primary(self, member: GroupMember) -> None:
        """In order: those who write meanwhile are let end."""
        run(member.root, "SELECT group_replication_set_as_primary(@@server_uuid)")

    def close(self) -> None:
        for member in self.members:
            member.close()
