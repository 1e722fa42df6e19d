------------------------------- MODULE Seat -------------------------------
(* The mutex record beside the doorman: programs that use the published     *)
(* record only, and programs that delete either of the two under a holder.  *)
(*                                                                          *)
(* A deletion of either voids the grants; their holders learn it by their   *)
(* next command.  What must hold all the same: no foreign program's record  *)
(* is ever taken away, and none of ours stays when its writer has learned   *)
(* that its grant is gone.  No other client would ever remove it.           *)
EXTENDS Naturals, FiniteSets
CONSTANTS
  Clients,
  Tickets,   \* how many each may use
  Tells,     \* the commands that remove their own ticket from a mutex record
             \* whose doorman is gone: "release", "renew" (or a conversion)
  Readers    \* which reader removes `readers`: "recorded": the step that finds the value
             \* that the doorman says we wrote, and no reader in.  As negative control
             \* "told": any reader that learns that its grant is gone
VARIABLES rec, seat, cl, robbed
vars == <<rec, seat, cl, robbed>>

None == <<"none", 0>>
\* A value of the mutex record: a writer's ticket, or `readers` and its time.  A
\* foreign program never writes a value that ours wrote.
Ours(c, n) == <<c, n>>
OurReaders(n) == <<"readers", n>>
Foreign == {<<"foreign", 0>>, <<"readers", 0>>}
Gone == [grants |-> {}, wrote |-> None, since |-> 1]

Init == /\ rec = Gone /\ seat = None /\ robbed = FALSE
        /\ cl = [c \in Clients |-> [n |-> 0, m |-> "", holds |-> FALSE]]

IsForeign == seat # None /\ seat # rec.wrote
\* The rules of the mutex record before a command ..
Valid == IF seat = rec.wrote THEN rec.grants ELSE {}
Holds(c) == \E g \in Valid : g.c = c
\* .. and after it: it agrees with the doorman.  `out`: the foreign record was ours.
Ends(grants, wrote, since, out) ==
  LET foreign == IsForeign /\ ~out IN
  /\ rec' = [grants |-> grants, since |-> since,
             wrote |-> IF foreign \/ grants = {} THEN None ELSE wrote]
  /\ seat' = IF foreign THEN seat ELSE IF grants = {} THEN None ELSE wrote
  /\ robbed' = (robbed \/ (seat \in Foreign /\ seat' # seat))

Acquire(c, m) ==
  LET me == cl[c]
      joins == m = "R" /\ Valid # {} /\ \A g \in Valid : g.m = "R"
      wrote == IF joins THEN rec.wrote ELSE IF m = "W" THEN Ours(c, me.n + 1) ELSE OurReaders(rec.since) IN
  /\ me.n < Tickets /\ ~me.holds /\ ~IsForeign
  /\ Valid = {} \/ joins
  /\ cl' = [cl EXCEPT ![c] = [n |-> me.n + 1, m |-> m, holds |-> TRUE]]
  /\ Ends(Valid \cup {[c |-> c, m |-> m]}, wrote, rec.since + (IF joins THEN 0 ELSE 1), FALSE)
\* Its holder releases, or renews and learns it; the reply may be lost.
Command(c, op) ==
  LET me == cl[c]
      own == op \in Tells /\ me.m = "W" /\ seat = Ours(c, me.n)
      any == Readers = "told" /\ me.m = "R" /\ seat[1] = "readers" IN
  /\ me.n > 0 /\ me.holds
  /\ IF Holds(c)
     THEN /\ Ends(IF op = "release" THEN {g \in Valid : g.c # c} ELSE Valid, rec.wrote, rec.since, FALSE)
          /\ \/ cl' = [cl EXCEPT ![c].holds = (op # "release")]
             \/ UNCHANGED cl
     ELSE /\ Ends(Valid, rec.wrote, rec.since, own \/ any)
          /\ \/ cl' = [cl EXCEPT ![c].holds = FALSE]
             \/ UNCHANGED cl

Sit(v) == seat = None /\ seat' = v /\ UNCHANGED <<rec, cl, robbed>>
Rise == seat \in Foreign /\ seat' = None /\ UNCHANGED <<rec, cl, robbed>>
DeleteSeat == seat # None /\ seat' = None /\ UNCHANGED <<rec, cl, robbed>>
DeleteRecord == rec' = [Gone EXCEPT !.since = rec.since] /\ UNCHANGED <<seat, cl, robbed>>
\* On Redis the readers are in a key of their own.
DeleteGrants == rec' = [rec EXCEPT !.grants = {}] /\ UNCHANGED <<seat, cl, robbed>>
\* A lease runs out, and the next step finds that.
Expire(g) == /\ g \in Valid /\ UNCHANGED cl
             /\ Ends(Valid \ {g}, rec.wrote, rec.since, FALSE)

Next == \/ \E c \in Clients : \/ \E m \in {"R", "W"} : Acquire(c, m)
                              \/ \E op \in {"release", "renew"} : Command(c, op)
        \/ \E v \in Foreign : Sit(v)
        \/ Rise \/ DeleteSeat \/ DeleteRecord \/ DeleteGrants
        \/ \E g \in Valid : Expire(g)
Spec == Init /\ [][Next]_vars
Bound == rec.since <= Tickets * Cardinality(Clients) + 1
---------------------------------------------------------------------------
\* no step of ours takes a foreign program's mutex record away
NotRobbed == ~robbed
\* no ticket of ours is in it when its holder has learned that its grant is gone
NoOrphan == \A c \in Clients :
  cl[c].n > 0 /\ cl[c].m = "W" /\ seat = Ours(c, cl[c].n) => cl[c].holds \/ Holds(c)
\* a holder's value is in it: no foreign program enters beside it
Seated == Valid # {} => seat # None
=============================================================================
