------------------------------- MODULE Turn -------------------------------
(* Whose turn it is: the rules of admission as operators on a doorman.     *)
(* LockRec (safety) and LockLive (liveness) both extend this module, so    *)
(* that the rule is written once, as it is in aiorwlock_remote/core/admission.py*)
(*                                                                         *)
(* A doorman r has the fields used here:                                   *)
(*   grants    set of [g, m, ..]  g: client id,  m: "R" or "W"             *)
(*   queue     sequence of entries [g, m, admitted, late, ..], oldest first *)
(*   slot      clients waiting to be upgraded (at most one of them)        *)
(*   upgraded  the live or last write phase began as an upgrade            *)
(*                                                                         *)
(* Two abstractions.  Queue numbers are unbounded, so `number <=           *)
(* admit_upto while now < admit_until` is kept as a flag `admitted` on the *)
(* entry, set when the window opens and cleared by a step when it closes.  *)
(* Time is a step too: `late` is set by the environment (the claim window  *)
(* passed), never computed.                                                *)
EXTENDS Naturals, Sequences, FiniteSets
CONSTANTS
  OneUpgrader,    \* a second reader that wants to upgrade is refused at once
  UpgradeWaits,   \* an upgrade lets the admitted readers in first
  UpgradeYields,  \* the end of an upgrade's phase lets a waiting writer in first
  SlotLingers,    \* the slot of a reader that left is cleared by the next step only
                  \* (bug once found in the code)
  JoinAlways      \* negative control: readers join although a writer waits

Empty == [grants |-> {}, queue |-> <<>>, slot |-> {}, upgraded |-> FALSE]

Writing(r) == \E h \in r.grants : h.m = "W"
Compatible(r, m) == r.grants = {} \/ (m = "R" /\ ~Writing(r))

Position(r, g, m) == {i \in DOMAIN r.queue : r.queue[i].g = g /\ r.queue[i].m = m}
HasPlace(r, g, m) == Position(r, g, m) # {}
Number(r, g, m) == CHOOSE i \in Position(r, g, m) : TRUE
WithoutPlace(r, g, m) ==
  [r EXCEPT !.queue = SelectSeq(@, LAMBDA p : ~(p.g = g /\ p.m = m))]

\* The client asks: its entry is no longer late; without an entry it gets a
\* provisional one at the tail.
Asked(r, new) ==
  IF HasPlace(r, new.g, new.m)
  THEN [r EXCEPT !.queue[Number(r, new.g, new.m)].late = FALSE]
  ELSE [r EXCEPT !.queue = Append(@, new)]

Writers(r) == {i \in DOMAIN r.queue : r.queue[i].m = "W" /\ ~r.queue[i].late}
Admitted(r) ==
  {i \in DOMAIN r.queue : r.queue[i].m = "R" /\ r.queue[i].admitted /\ ~r.queue[i].late}
\* Readers that wait although they would claim the resource if it were offered.
Unadmitted(r) ==
  {i \in DOMAIN r.queue : r.queue[i].m = "R" /\ ~r.queue[i].admitted /\ ~r.queue[i].late}
WriterWaits(r) == Writers(r) # {} \/ r.slot # {}

\* may_enter(): may the client of entry i be granted now?
MayEnter(r, i, policy) ==
  LET m == r.queue[i].m
      oldest == ~\E j \in Writers(r) : j < i IN
  /\ Compatible(r, m)
  /\ IF m = "W"
     THEN oldest /\ (policy = "writer" \/ Admitted(r) = {})
     ELSE \/ policy = "reader" \/ JoinAlways
          \/ ~WriterWaits(r)
          \/ policy = "fair" /\ i \in Admitted(r)

\* upgrade(): g is the only reader, and no admitted reader is still out
OnlyReader(r, g) == {h.g : h \in r.grants} = {g} /\ Cardinality(r.grants) = 1
MayUpgrade(r, g) == OnlyReader(r, g) /\ (~UpgradeWaits \/ Admitted(r) = {})
UpgradeConflict(r, g) == OneUpgrader /\ r.slot \ {g} # {}

\* admit_waiting(): all readers waiting at this moment may enter
AdmitWaiting(r) ==
  [r EXCEPT !.queue = [i \in DOMAIN @ |->
     IF @[i].m = "R" THEN [@[i] EXCEPT !.admitted = TRUE] ELSE @[i]]]

\* The end of every step: a slot lives as long as its read grant; the end of
\* a write phase admits the waiting readers, and so does the lack of writers.
\* A phase that was an upgrade overtook the waiting writers, late ones as well: theirs
\* is next.
Settled(before, r) ==
  LET known == IF SlotLingers THEN before.grants \cup r.grants ELSE r.grants
      s == [r EXCEPT !.slot = {g \in @ : \E h \in known : h.g = g /\ h.m = "R"}]
      ended == Writing(before) /\ ~Writing(s)
      waits == \E i \in DOMAIN s.queue : s.queue[i].m = "W"
      overtook == UpgradeYields /\ before.upgraded /\ waits IN
  IF (ended /\ ~overtook) \/ (~Writing(s) /\ ~WriterWaits(s) /\ Unadmitted(s) # {})
  THEN AdmitWaiting(s) ELSE s

\* The admission window closes.
CloseWindow(r) ==
  [r EXCEPT !.queue = [i \in DOMAIN @ |-> [@[i] EXCEPT !.admitted = FALSE]]]
=============================================================================
