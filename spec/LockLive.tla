----------------------------- MODULE LockLive -----------------------------
(* Liveness of waiting: which clients enter, and which may starve.         *)
(*                                                                         *)
(* Reservation, not hand-off: a step wakes the clients whose turn it is,   *)
(* and only the acquire round trip of a woken client grants.  With Push a  *)
(* step grants to the writer whose turn it is, for its claim window, and   *)
(* the message lets it enter.  Fences play no part in waiting and are left *)
(* out: so the state space is finite.                                      *)
(*                                                                         *)
(* A client is one pair of client id and mode, as a queue entry is; the    *)
(* local tasks behind one entry are one waiter to the store.               *)
EXTENDS Turn, TLC
CONSTANTS
  ReaderSet, WriterSet,  \* the clients, by the mode they ask for
  Policy,             \* "fair" | "writer" | "reader"
  Movers,             \* clients that may downgrade or upgrade while they hold
  Leavers,            \* clients that may stop waiting (a timeout)
  Lossy,              \* notifications (and withdrawals) may be lost
  Polling,            \* a sleeper also wakes by its timer
  SubscribeLate,      \* negative control: subscribe after the failed try
  MaxCrash,           \* clients that may die, at any point
  Prompt,             \* a live client claims within its claim window
  Patient,            \* an entry that missed one window is waited for next time
  Push,               \* "no", "yes": a step grants to the writer whose turn it is
                      \* "drops": and drops its entry           (negative control)
                      \* "phase": and its end admits readers     (negative control)
  Lapse               \* negative control: a live waiter's entry may die
VARIABLES rec, st, dead
vars == <<rec, st, dead>>

Clients == ReaderSet \cup WriterSet
Mode(c) == IF c \in ReaderSet THEN "R" ELSE "W"
Live(c) == c \notin dead

\* idle -> try <-> sleep -> in -> idle        acquire and release
\* in -> climb <-> perch -> in                waiting for an upgrade
\* in -> done                                 downgraded, or no upgrade after all
\* try -> deaf -> sleep                       SubscribeLate only
Entering(c) == st[c] \in {"try", "deaf", "sleep"}
Climbing(c) == st[c] \in {"climb", "perch"}
Waiting(c) == Entering(c) \/ Climbing(c)
Holding(c) == st[c] \in {"in", "done"}

\* `pushed`: the writer that was granted by a step of another client, and has neither
\* asked nor confirmed since.  Its entry stays, for the case that it misses its window.
Init == /\ rec = [pushed |-> {}] @@ Empty
        /\ st = [c \in Clients |-> "idle"]
        /\ dead = {}

NewPlace(c) == [g |-> c, m |-> Mode(c), admitted |-> FALSE, late |-> FALSE, missed |-> FALSE]
Grant(c, m) == [g |-> c, m |-> m]
GrantOf(c) == {h \in rec.grants : h.g = c}
Holds(c, m) == Grant(c, m) \in rec.grants

\* the acquire command: enter, or keep an entry; a pushed grant is confirmed
Confirmed(r, c) == [WithoutPlace(r, c, Mode(c)) EXCEPT !.pushed = {}]
Acquired(r, c) ==
  IF c \in r.pushed THEN [in |-> TRUE, rec |-> Confirmed(r, c)] ELSE
  LET q == Asked(r, NewPlace(c))
      in == MayEnter(q, Number(q, c, Mode(c)), Policy)
      left == WithoutPlace(q, c, Mode(c)) IN
  [in |-> in,
   rec |-> IF in THEN [left EXCEPT !.grants = @ \cup {Grant(c, Mode(c))},
                                   !.upgraded = FALSE]
           ELSE q]
Released(r, c) == [r EXCEPT !.grants = {h \in @ : h.g # c}, !.pushed = @ \ {c}]

\* Clients with something to claim are woken; some of them, if messages get lost.
Told(r) ==
  {c \in Clients : HasPlace(r, c, Mode(c)) /\ MayEnter(r, Number(r, c, Mode(c)), Policy)}
    \cup {c \in r.slot : MayUpgrade(r, c)}
Woken(s, told) == [c \in Clients |->
  IF c \notin told THEN s[c]
  ELSE IF s[c] = "sleep" THEN "try" ELSE IF s[c] = "perch" THEN "climb" ELSE s[c]]
\* A pushed grant that no client entered with was no write phase: its end admits no
\* readers, or they would pass the writer behind it, each time (`push_is_phase`).
Before(r, c) == IF c \in rec.pushed /\ Push # "phase" THEN r ELSE rec
\* The step grants to the writer whose turn it is.
Pushed(r) ==
  LET heads == {i \in Writers(r) : MayEnter(r, i, "fair")} IN
  IF Push = "no" \/ heads = {} THEN r
  ELSE LET c == r.queue[CHOOSE i \in heads : TRUE].g
           granted == [r EXCEPT !.grants = {Grant(c, "W")}, !.upgraded = FALSE, !.pushed = {c}] IN
       IF Push = "drops" THEN WithoutPlace(granted, c, "W") ELSE granted
\* A message that comes in time lets its client enter, and it confirms; one that comes
\* too late for its client's bound makes it ask.
StepFrom(before, r, s) ==
  LET settled == Pushed(Settled(before, r))
      told == {c \in Told(settled) \cup settled.pushed : s[c] \in {"sleep", "perch"}} IN
  /\ \E lost \in IF Lossy THEN SUBSET told ELSE {{}} :
       \E enter \in SUBSET (settled.pushed \cap (told \ lost)) :
         /\ rec' = IF enter = {} THEN settled ELSE Confirmed(settled, CHOOSE c \in enter : TRUE)
         /\ st' = [c \in Clients |-> IF c \in enter THEN "in" ELSE Woken(s, told \ lost)[c]]
  /\ UNCHANGED dead
Step(r, s) == StepFrom(rec, r, s)
\* time passed: no client is woken
Silent(r) == rec' = Settled(rec, r) /\ UNCHANGED <<st, dead>>

---------------------------------------------------------------------------
(* Clients.  A request and its reply are one step here; lost replies are    *)
(* LockRec's business (the client asks again, and acquire is idempotent).   *)
Ask(c) == /\ Live(c) /\ st[c] = "idle"
          /\ st' = [st EXCEPT ![c] = "try"] /\ UNCHANGED <<rec, dead>>
Try(c) == /\ Live(c) /\ st[c] = "try"
          /\ LET a == Acquired(rec, c) IN
             /\ rec' = Settled(rec, a.rec)
             /\ st' = [st EXCEPT ![c] = IF a.in THEN "in" ELSE IF SubscribeLate THEN "deaf" ELSE "sleep"]
          /\ UNCHANGED dead
Subscribe(c) == /\ Live(c) /\ st[c] = "deaf"
                /\ st' = [st EXCEPT ![c] = "sleep"] /\ UNCHANGED <<rec, dead>>
Poll(c) == /\ Polling /\ Live(c) /\ st[c] \in {"sleep", "perch"}
           /\ st' = Woken(st, {c}) /\ UNCHANGED <<rec, dead>>
Release(c) == /\ Live(c) /\ (Holding(c) \/ (c \in Leavers /\ Climbing(c)))
              /\ Step(Released(rec, c), [st EXCEPT ![c] = "idle"])
\* A release that carries the next local acquire: two commands, one message.
ReleaseNext(c) == /\ Live(c) /\ Holding(c)
                  /\ LET free == Settled(rec, Released(rec, c))
                         a == Acquired(free, c) IN
                     StepFrom(free, a.rec, [st EXCEPT ![c] = IF a.in THEN "in" ELSE "sleep"])
\* a timeout; a lost withdrawal leaves the entry, or the slot, behind
Withdraw(c) == /\ Live(c) /\ c \in Leavers /\ (st[c] = "sleep" \/ Climbing(c))
               /\ LET left == IF Climbing(c) THEN [rec EXCEPT !.slot = @ \ {c}]
                              ELSE IF c \in rec.pushed
                              THEN Released(WithoutPlace(rec, c, Mode(c)), c)
                              ELSE WithoutPlace(rec, c, Mode(c))
                      after == [st EXCEPT ![c] = IF Climbing(c) THEN "done" ELSE "idle"] IN
                  \/ StepFrom(Before(left, c), left, after)
                  \/ Lossy /\ st' = after /\ UNCHANGED <<rec, dead>>
Downgrade(c) == /\ Live(c) /\ c \in Movers /\ st[c] = "in" /\ Holds(c, "W")
                /\ Step([rec EXCEPT !.grants = {Grant(c, "R")}], [st EXCEPT ![c] = "done"])
WantUpgrade(c) == /\ Live(c) /\ c \in Movers /\ st[c] = "in" /\ Holds(c, "R")
                  /\ st' = [st EXCEPT ![c] = "climb"] /\ UNCHANGED <<rec, dead>>
Upgrade(c) ==
  /\ Live(c) /\ st[c] = "climb"
  /\ IF UpgradeConflict(rec, c)
     THEN st' = [st EXCEPT ![c] = "done"] /\ UNCHANGED <<rec, dead>>
     ELSE IF MayUpgrade(rec, c)
     THEN Step([rec EXCEPT !.grants = {Grant(c, "W")}, !.slot = {}, !.upgraded = TRUE],
               [st EXCEPT ![c] = "in"])
     ELSE Step([rec EXCEPT !.slot = @ \cup {c}], [st EXCEPT ![c] = "perch"])

---------------------------------------------------------------------------
(* Environment *)
Crash(c) == /\ Live(c) /\ Cardinality(dead) < MaxCrash
            /\ dead' = dead \cup {c} /\ UNCHANGED <<rec, st>>
ExpireGrant(c) == /\ ~Live(c) /\ GrantOf(c) # {} /\ c \notin rec.pushed
                  /\ Silent(Released(rec, c))
\* no client refreshes this entry any more
Orphan(c) == ~Live(c) \/ ~Entering(c)
ExpirePlace(c) == /\ HasPlace(rec, c, Mode(c)) /\ (Orphan(c) \/ Lapse)
                  /\ Silent(WithoutPlace(rec, c, Mode(c)))
\* the claim window passes without a claim of this entry
MayMiss(p) == Orphan(p.g) \/ (~Prompt /\ ~(Patient /\ p.missed))
\* the claim window of a pushed grant passes: its entry is late
Lapses(c) == /\ c \in rec.pushed
             /\ \A i \in Position(rec, c, "W") : MayMiss(rec.queue[i])
             /\ LET left == [Released(rec, c) EXCEPT !.queue = [i \in DOMAIN @ |->
                      IF i \in Position(rec, c, "W") THEN [@[i] EXCEPT !.late = TRUE, !.missed = TRUE]
                      ELSE @[i]]] IN
                rec' = Settled(Before(left, c), left) /\ UNCHANGED <<st, dead>>
GetLate(i) == /\ rec.grants = {} /\ MayEnter(rec, i, Policy)
              /\ rec.queue[i].m = "W" /\ MayMiss(rec.queue[i])
              /\ Silent([rec EXCEPT !.queue[i].late = TRUE, !.queue[i].missed = TRUE])
WindowCloses == /\ ~Writing(rec) /\ Admitted(rec) # {} /\ WriterWaits(rec)
                /\ \A i \in Admitted(rec) : MayMiss(rec.queue[i])
                /\ Silent([CloseWindow(rec) EXCEPT !.queue = [i \in DOMAIN @ |->
                     IF i \in Admitted(rec) THEN [@[i] EXCEPT !.missed = TRUE] ELSE @[i]]])

Next == \/ \E c \in Clients : \/ Ask(c) \/ Try(c) \/ Subscribe(c) \/ Poll(c)
                              \/ Release(c) \/ ReleaseNext(c) \/ Withdraw(c)
                              \/ Downgrade(c) \/ WantUpgrade(c) \/ Upgrade(c)
                              \/ Crash(c) \/ ExpireGrant(c) \/ ExpirePlace(c) \/ Lapses(c)
        \/ \E i \in DOMAIN rec.queue : GetLate(i)
        \/ WindowCloses
\* Live clients keep acting, and what is not renewed runs out.  No client has
\* to ask, to withdraw or to move; no window has to close.  (Weak fairness,
\* written with state predicates: every action of a client changes its state.
\* WF_vars would make TLC evaluate ENABLED of each action, 50 times slower.)
MustLeave == {"try", "deaf", "in", "done", "climb"}
             \cup (IF Polling THEN {"sleep", "perch"} ELSE {})
Fair == \A c \in Clients :
  /\ \A s \in MustLeave : []<>(st[c] # s \/ ~Live(c))
  /\ []<>(Live(c) \/ GrantOf(c) = {})
  /\ []<>(~Orphan(c) \/ c \notin rec.pushed)
  /\ []<>(~Orphan(c) \/ ~HasPlace(rec, c, Mode(c)))
Spec == Init /\ [][Next]_vars /\ Fair
---------------------------------------------------------------------------
Exclusion == \A h, k \in rec.grants : h # k => (h.m = "R" /\ k.m = "R")
\* a client that entered holds
HoldersHold == \A c \in Clients : Live(c) /\ (Holding(c) \/ Climbing(c)) => GrantOf(c) # {}
\* a free resource with a live waiter that stays is taken by a client
Stays(c) == Live(c) /\ Waiting(c) /\ c \notin Leavers
NoLostWakeup == (rec.grants = {} /\ \E c \in Clients : Stays(c))
                  ~> (rec.grants # {} \/ ~\E c \in Clients : Stays(c))
GetsIn(c) == (Live(c) /\ Waiting(c)) ~> (~Live(c) \/ ~Waiting(c))
StarvationFree == \A c \in Clients : GetsIn(c)
WritersFree == \A c \in WriterSet : GetsIn(c)
ReadersFree == \A c \in ReaderSet : GetsIn(c)
=============================================================================
