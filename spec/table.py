"""The table of configurations: what is checked, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass, field

PASS = "pass"


@dataclass(frozen=True)
class Module:
    """A model: the constants of the implemented rule, and its properties."""

    defaults: dict[str, str]
    safe: tuple[str, ...]
    live: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Config:
    """One run: how it departs from the defaults, and the verdict it must give."""

    name: str
    module: str
    expect: str
    constants: dict[str, str] = field(default_factory=dict)
    checks: tuple[str, ...] = ()


RULE = {"OneUpgrader": "TRUE", "UpgradeWaits": "TRUE", "UpgradeYields": "TRUE", "JoinAlways": "FALSE"}
MODULES = {
    "LockRec": Module(
        {
            **RULE,
            "Clients": "{a, b, c}",
            "MaxTickets": "1",
            "MaxFence": "3",
            "MaxLate": "1",
            "Policies": '{"fair"}',
            "Commands": "{}",
            "Fence": '"phase"',
            "MovesFence": "TRUE",
            "ReadsRaise": "TRUE",
            "FreshTicket": "TRUE",
            "Forget": "FALSE",
            "Clock": '"none"',
        },
        safe=("Exclusion","OnePhase","BeliefIsTrue","FencesRise","Isolated","NoFalseRefusal","Shape"),
        lines=("CONSTRAINT Bound", "SYMMETRY Symmetry"),
    ),
    "LockLive": Module(
        {
            **RULE,
            "ReaderSet": '{"r1", "r2"}',
            "WriterSet": '{"w1"}',
            "Policy": '"fair"',
            "Movers": "{}",
            "Leavers": "{}",
            "Lossy": "TRUE",
            "Polling": "TRUE",
            "SubscribeLate": "FALSE",
            "MaxCrash": "1",
            "Prompt": "FALSE",
            "Patient": "TRUE",
            "Lapse": "FALSE",
        },
        safe=("Exclusion",),
        live=("StarvationFree", "NoLostWakeup", "WritersFree", "ReadersFree"),
    ),
}
W2 = {"ReaderSet": '{"r1"}', "WriterSet": '{"w1", "w2"}'}
FAIR = ("Exclusion", "StarvationFree", "NoLostWakeup")
def L(name, expect=PASS, checks=FAIR, **k):
    return Config(name, "LockLive", expect, k, checks)
MV = {"Movers": '{"r1", "r2"}', "MaxCrash": "0"}

SAFE=("Exclusion","OnePhase","BeliefIsTrue","FencesRise","Isolated","NoFalseRefusal","Shape")
def R(name, expect=PASS, checks=None, **k):
    return Config(name, "LockRec", expect, k, checks or (SAFE if expect == PASS else (expect,)))
AB={"Clients":"{a, b}"}
MOVE={"Commands":'{"down", "up"}'}
T2={"MaxTickets":"2","MaxFence":"4"}
CONFIGS = (
  R("s2_move0", MaxLate="0", **MOVE, **T2, **AB),
  R("s2_move1", MaxLate="1", **MOVE, **T2, **AB),
  R("s2_next", MaxLate="0", Commands='{"next"}', **T2, **AB),
  R("s3_writer", Policies='{"writer"}'),
  R("s3_reader", Policies='{"reader"}'),
  R("s3_mixed", Policies='{"fair","reader","writer"}'),
  R("s2_fair1", **T2, **AB),
  R("s3_move0", MaxLate="0", MaxTickets="2", MaxFence="3", **MOVE),
  R("writers_only", "Isolated", Fence='"writers"', MaxLate="0"),
  R("reads_dont_raise", "Isolated", ReadsRaise="FALSE", MaxLate="0"),
  R("each", "NoFalseRefusal", Fence='"each"', MaxLate="0"),
  R("reused", "BeliefIsTrue", FreshTicket="FALSE", **T2, **AB),
  R("downgrade_keeps_phase", "Isolated", MovesFence="FALSE",Commands='{"down"}', MaxLate="0", **T2,**AB),
  R("upgrade_keeps_phase", "Isolated", MovesFence="FALSE",Commands='{"up"}', MaxLate="0", **T2,**AB),
  R("forget", "FencesRise", Forget="TRUE", MaxLate="0", **T2,**AB),
  R("forget_clock", Forget="TRUE", Clock='"runs"', MaxLate="0", **T2,**AB),
  R("forget_back", "FencesRise", Forget="TRUE", Clock='"back"', MaxLate="0", **T2,**AB),
)
CONFIGS2 = (
    L("fair_2r1w"), L("fair_1r2w", **W2),
    L("leave", Leavers='{"w1"}'), L("leaver", Leavers='{"r1"}'),
    L("brief_late", Patient="FALSE", **W2),
    L("brief_late_r", Patient="FALSE", checks=("ReadersFree",)),
    L("brief_late_w", Patient="FALSE", checks=("WritersFree",)),
    L("brief_late_w2", Patient="FALSE", checks=("WritersFree",),**W2),
    L("brief_late_r2", Patient="FALSE", checks=("ReadersFree",),**W2),
    L("brief_late_nlw", Patient="FALSE", checks=("NoLostWakeup",),**W2),
    L("brief_prompt", Patient="FALSE", Prompt="TRUE", **W2),
    L("mv11", **MV),
    L("mv01", UpgradeWaits="FALSE", **MV),
    L("mv10", UpgradeYields="FALSE", **MV),
    L("mv10w", UpgradeYields="FALSE", checks=("WritersFree",), **MV),
    L("mv01r", UpgradeWaits="FALSE", checks=("ReadersFree",), **MV),
    L("mv00r", UpgradeWaits="FALSE", UpgradeYields="FALSE", checks=("ReadersFree",), **MV),
    L("mv11_prompt", Prompt="TRUE", **MV),
    L("mv01_prompt", UpgradeWaits="FALSE", Prompt="TRUE", **MV),
)
