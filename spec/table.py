"""The table of configurations: what is checked, and what must come out.

A row says how it departs from the implemented rule (the module's ``defaults``). A row
that must pass checks all properties of its group; one that must fail is a negative
control and names the one property that must be violated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PASS = "pass"  # noqa: S105 - a verdict
YES, NO = "TRUE", "FALSE"


@dataclass(frozen=True)
class Module:
    """A model: its constants for the implemented rule, and its properties.

    ``lines``: further lines of TLC's configuration; ``spec``: the behaviours to check.
    """

    defaults: Mapping[str, str]
    safe: tuple[str, ...]
    live: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    spec: str = "Spec"


@dataclass(frozen=True)
class Config:
    """One run of TLC and the verdict it must give: PASS or the violated property."""

    name: str
    module: str
    expect: str
    checks: tuple[str, ...]
    constants: Mapping[str, str]


def row(
    module: str, name: str, expect: str | tuple[str, ...], **constants: str
) -> Config:
    """``expect`` is the property to be violated, or all that must hold."""
    if isinstance(expect, str):
        return Config(name, module, expect, (expect,), constants)
    return Config(name, module, PASS, expect, constants)


RULE = {
    "OneUpgrader": YES,
    "UpgradeWaits": YES,
    "UpgradeYields": YES,
    "SlotLingers": NO,
    "JoinAlways": NO,
}
MODULES = {
    "LockRec": Module(
        defaults={
            **RULE,
            "Clients": "{a, b, c}",
            "Twice": "{}",
            "MaxFence": "3",
            "MaxLate": "0",
            "Policies": '{"fair"}',
            "Commands": "{}",
            "KeepsPlace": YES,
            "Fence": '"phase"',
            "MovesFence": YES,
            "Adopts": '"anew"',
            "ReadsRaise": YES,
            "FreshTicket": YES,
            "Forget": NO,
            "Clock": '"none"',
        },
        safe=(
            "Exclusion",
            "OnePhase",
            "BeliefIsTrue",
            "OneHeir",
            "FencesRise",
            "InOrder",
            "Isolated",
            "NoFalseRefusal",
            "Shape",
        ),
        lines=("CONSTRAINT Bound", "SYMMETRY Symmetry"),
    ),
    "LockLive": Module(
        defaults={
            **RULE,
            "ReaderSet": '{"r1", "r2"}',
            "WriterSet": '{"w1"}',
            "Policy": '"fair"',
            "Movers": "{}",
            "Leavers": "{}",
            "Lossy": YES,
            "Polling": YES,
            "SubscribeLate": NO,
            "MaxCrash": "1",
            "Prompt": NO,
            "Patient": YES,
            "Push": '"no"',
            "Lapse": NO,
        },
        safe=("Exclusion", "HoldersHold"),
        live=("StarvationFree", "NoLostWakeup", "WritersFree", "ReadersFree"),
    ),
    "LeaseTime": Module(
        defaults={
            "Clients": '{"a", "b"}',
            "Lease": "3",
            "MaxTime": "7",
            "Anchor": '"send"',
            "Margin": "1",
            "Drift": "1",
            "StoreJump": "0",
            "Push": NO,
        },
        safe=("OneBeliever",),
    ),
    "PushedGrant": Module(
        defaults={
            "Clients": "{a, b}",
            "Attempts": "1",
            "Lease": "3",
            "Window": "2",
            "MaxTime": "6",
            "Margin": "1",
            "Drift": "1",
            "StoreJump": "0",
            "Moves": NO,
            "MaxLate": "1",
            "Bound": '"sent"',
            "Proof": YES,
            "Hears": '"ticket"',
        },
        safe=("OneBeliever", "BeliefIsTrue", "FencesRise"),
        lines=("SYMMETRY Symmetry",),
    ),
    "Permits": Module(
        defaults={
            "Clients": '{"a", "b", "c"}',
            "Busy": '{"a"}',
            "Limit": "2",
            "Strict": "{}",
            "MaxCrash": "1",
            "Lossy": YES,
            "Patient": YES,
            "Ordered": YES,
            "Least": YES,
            "Behind": YES,
        },
        safe=("WithinLimit", "Queued"),
        live=("StarvationFree",),
    ),
    "Seat": Module(
        defaults={
            "Clients": '{"a", "b"}',
            "Tickets": "2",
            "Tells": '{"release", "renew"}',
            "Readers": '"recorded"',
        },
        safe=("NotRobbed", "NoOrphan", "Seated"),
        lines=("CONSTRAINT Bound",),
    ),
}

# Recorded histories (tests/traces): not in CONFIGS, as the histories are a module of
# their own.
TRACES = Module(
    defaults={
        name: text
        for name, text in MODULES["LockRec"].defaults.items()
        if name != "Clients"
    },
    safe=("Exclusion", "OnePhase", "FencesRise", "InOrder", "Shape"),
    lines=("CONSTANT Clients <- Known", "CONSTANT Traces <- Recorded"),
    spec="TraceSpec",
)
MODULES["TraceRec"] = TRACES

SAFE = MODULES["LockRec"].safe
PERMITS_SAFE = MODULES["Permits"].safe
PERMITS = (*PERMITS_SAFE, *MODULES["Permits"].live)
PAIR = {"Clients": '{"a", "b"}'}
STRICT_B = {"Strict": '{"b"}', "MaxCrash": "0"}
FAIR = ("Exclusion", "HoldersHold", "StarvationFree", "NoLostWakeup")
TWO = {"Clients": "{a, b}", "Twice": "{a, b}", "MaxFence": "4"}  # 2 clients x 2 tickets
LATE = {"Clients": "{a, b}", "Twice": "{a}", "MaxLate": "1"}
MOVES = {"Commands": '{"down", "up"}'}
ADOPTS = {"Commands": '{"adopt"}'}
W2 = {"ReaderSet": '{"r1"}', "WriterSet": '{"w1", "w2"}'}
# Two readers that may upgrade, both prompt: nothing but the moves can starve anyone.
CLIMB = {"Movers": '{"r1", "r2"}', "MaxCrash": "0", "Prompt": YES}
DRAWN = {"Patient": NO, "MaxCrash": "0"}
NO_POLL = {"Polling": NO, "Prompt": YES, "MaxCrash": "0"}
# Nothing gets lost and nobody dies: messages alone must be enough.
QUIET = {**NO_POLL, "Lossy": NO, "Movers": '{"r1", "r2"}', "Leavers": '{"r1", "w1"}'}

CONFIGS = (
    # Safety: the implemented rule
    row("LockRec", "fair_3", SAFE, MaxLate="1"),
    row("LockRec", "writer_3", SAFE, MaxLate="1", Policies='{"writer"}'),
    row("LockRec", "reader_3", SAFE, MaxLate="1", Policies='{"reader"}'),
    row("LockRec", "mixed_3", SAFE, Policies='{"fair", "writer", "reader"}'),
    row("LockRec", "fair_2x2", SAFE, **TWO),
    row("LockRec", "writer_2x2", SAFE, Policies='{"writer"}', **TWO),
    row("LockRec", "reader_2x2", SAFE, Policies='{"reader"}', **TWO),
    row("LockRec", "next_2x2", SAFE, Commands='{"next"}', **TWO),
    row("LockRec", "moves_late", SAFE, **LATE, **MOVES),
    row("LockRec", "moves_3", SAFE, Twice="{a}", **MOVES),
    # Whoever may adopt need not: what these two explore holds without it, too.
    row("LockRec", "adopt_late", SAFE, **LATE, **ADOPTS),
    row("LockRec", "adopt_2x2", SAFE, **TWO, Commands='{"down", "up", "adopt"}'),
    row("LockRec", "adopt_3", SAFE, **ADOPTS),
    row("LockRec", "forget_clock_runs", SAFE, Forget=YES, Clock='"runs"', **TWO),
    # Safety: negative controls
    row("LockRec", "fence_by_writers_only", "Isolated", Fence='"writers"'),
    row("LockRec", "fence_for_each_reader", "NoFalseRefusal", Fence='"each"'),
    row("LockRec", "reads_do_not_raise", "Isolated", ReadsRaise=NO),
    row("LockRec", "asks_at_the_tail", "InOrder", KeepsPlace=NO),
    row("LockRec", "joins_before_writers", "InOrder", JoinAlways=YES),
    row("LockRec", "ticket_reused", "BeliefIsTrue", **{**LATE, "FreshTicket": NO}),
    row("LockRec", "downgrade_keeps_phase", "Isolated", MovesFence=NO, **TWO, **MOVES),
    row(
        "LockRec",
        "upgrade_keeps_phase",
        "Isolated",
        MovesFence=NO,
        Commands='{"up"}',
        **TWO,
    ),
    row("LockRec", "adopted_phase", "Isolated", Adopts='"same phase"', **ADOPTS),
    row("LockRec", "adopted_ticket", "OneHeir", Adopts='"same ticket"', **ADOPTS),
    row(
        "LockRec",
        "adopted_ticket_late",
        "BeliefIsTrue",
        Adopts='"same ticket"',
        **LATE,
        **ADOPTS,
    ),
    row("LockRec", "adopted_beside", "Exclusion", Adopts='"beside"', **ADOPTS),
    row("LockRec", "adopted_late", "Isolated", Adopts='"late"', **ADOPTS),
    row("LockRec", "forget_no_clock", "FencesRise", Forget=YES, **TWO),
    row(
        "LockRec",
        "forget_clock_back",
        "FencesRise",
        Forget=YES,
        Clock='"back"',
        **TWO,
    ),
    # Liveness: the implemented rule; lossy messages, polling, one crash
    row("LockLive", "fair_2r1w", FAIR),
    row("LockLive", "fair_1r2w", FAIR, **W2),
    row("LockLive", "fair_2r2w", FAIR, WriterSet='{"w1", "w2"}', MaxCrash="0"),
    row("LockLive", "fair_timeouts", FAIR, Leavers='{"r1", "w1"}'),
    row("LockLive", "fair_moves", FAIR, Movers='{"r1", "w1"}'),
    row("LockLive", "fair_moves_2w", FAIR, Movers='{"r1", "w1"}', **W2),
    row("LockLive", "fair_all_move", FAIR, Movers='{"r1", "r2", "w1"}'),
    row("LockLive", "fair_two_climb", FAIR, **CLIMB),
    row("LockLive", "fair_climb_timeouts", FAIR, Leavers='{"r1"}', **CLIMB),
    row("LockLive", "fair_prompt", FAIR, **{**W2, "Prompt": YES, "Patient": NO}),
    row("LockLive", "fair_no_poll", FAIR, **QUIET),
    row("LockLive", "writer_policy_w", ("WritersFree",), Policy='"writer"'),
    row("LockLive", "reader_policy_r", ("ReadersFree",), Policy='"reader"'),
    row("LockLive", "push_1r2w", FAIR, Push='"yes"', **W2),
    row("LockLive", "push_2r1w", FAIR, Push='"yes"'),
    row("LockLive", "push_timeouts", FAIR, Push='"yes"', Leavers='{"r1", "w1"}', **W2),
    row("LockLive", "push_moves", FAIR, Push='"yes"', Movers='{"r1", "w1"}', **W2),
    row("LockLive", "push_no_poll", FAIR, Push='"yes"', **QUIET, **W2),
    # Liveness: the rule as first drawn (see README, counterexamples)
    row("LockLive", "drawn_missed_window_r", "ReadersFree", **DRAWN),
    row("LockLive", "drawn_missed_window_w", "WritersFree", **DRAWN, **W2),
    row("LockLive", "drawn_upgrade_rushes", "ReadersFree", UpgradeWaits=NO, **CLIMB),
    row("LockLive", "drawn_upgrade_admits", "WritersFree", UpgradeYields=NO, **CLIMB),
    row("LockLive", "drawn_slot_lingers", "NoLostWakeup", SlotLingers=YES, **QUIET),
    # Liveness: negative controls
    row("LockLive", "push_drops_entry", "WritersFree", Push='"drops"', **W2),
    row(
        "LockLive",
        "push_is_phase",
        "WritersFree",
        Push='"phase"',
        Leavers='{"w1"}',
        **W2,
    ),
    row("LockLive", "joining_never_closes", "WritersFree", JoinAlways=YES),
    row("LockLive", "two_upgraders", "StarvationFree", OneUpgrader=NO, **CLIMB),
    row("LockLive", "writer_policy_r", "ReadersFree", Policy='"writer"', **W2),
    row("LockLive", "reader_policy_w", "WritersFree", Policy='"reader"'),
    row("LockLive", "no_poll_lossy", "NoLostWakeup", **NO_POLL),
    row(
        "LockLive",
        "no_poll_crash",
        "NoLostWakeup",
        **{**NO_POLL, "Lossy": NO, "MaxCrash": "1"},
    ),
    row(
        "LockLive",
        "subscribe_late",
        "NoLostWakeup",
        Lossy=NO,
        SubscribeLate=YES,
        **NO_POLL,
    ),
    row("LockLive", "place_lapses", "StarvationFree", Lapse=YES, **W2),
    # Time: when may a client act on its own clock?
    row("LeaseTime", "send", ("OneBeliever",), Margin="0", Drift="0"),
    row("LeaseTime", "drift_margin", ("OneBeliever",)),
    row("LeaseTime", "jump_margin", ("OneBeliever",), Margin="2", StoreJump="1"),
    row("LeaseTime", "reply", "OneBeliever", Anchor='"reply"', Margin="0", Drift="0"),
    row("LeaseTime", "drift_no_margin", "OneBeliever", Margin="0"),
    row("LeaseTime", "jump_over_margin", "OneBeliever", StoreJump="2"),
    row("LeaseTime", "pushed_grant", "OneBeliever", Push=YES),
    # A grant by message: when may its client believe it?
    row("PushedGrant", "push_bounded", MODULES["PushedGrant"].safe),
    row(
        "PushedGrant",
        "push_jump",
        MODULES["PushedGrant"].safe,
        StoreJump="1",
        Margin="1",
        Drift="0",
    ),
    row("PushedGrant", "push_jump_over", "OneBeliever", StoreJump="1"),
    row("PushedGrant", "push_moved_slot", "OneBeliever", StoreJump="1", Moves=YES),
    row("PushedGrant", "push_unbounded", "OneBeliever", Bound='"none"'),
    row("PushedGrant", "push_from_reply", "OneBeliever", Bound='"reply"'),
    row("PushedGrant", "push_forged", "OneBeliever", Proof=NO),
    row("PushedGrant", "push_drift", "OneBeliever", Margin="0"),
    row(
        "PushedGrant", "push_to_client", "BeliefIsTrue", Hears='"client"', Attempts="2"
    ),
    # Permits of a semaphore
    row("Permits", "permits_safe", PERMITS_SAFE),
    row("Permits", "permits_safe_busy", PERMITS_SAFE, Busy='{"a", "b"}', MaxCrash="0"),
    row("Permits", "permits_safe_strict", PERMITS_SAFE, Strict='{"b"}'),
    row("Permits", "permits_live", PERMITS, **PAIR, Limit="1"),
    row("Permits", "permits_live_two", PERMITS, **PAIR, MaxCrash="0"),
    row("Permits", "permits_live_strict", PERMITS, **PAIR, **STRICT_B),
    row("Permits", "permits_overtake", "StarvationFree", Ordered=NO, **PAIR, Limit="1"),
    row("Permits", "permits_stay", "StarvationFree", Behind=NO, **PAIR, Limit="1"),
    row("Permits", "permits_own_limit", "WithinLimit", Least=NO, Strict='{"b"}'),
    row(
        "Permits", "permits_impatient", "StarvationFree", Patient=NO, **PAIR, Limit="1"
    ),
    # The seat, and who deletes it or the record
    row("Seat", "own_seat_goes", MODULES["Seat"].safe),
    row("Seat", "renewal_leaves_seat", "NoOrphan", Tells='{"release"}'),
    row("Seat", "any_reader_clears", "NotRobbed", Readers='"told"'),
)
