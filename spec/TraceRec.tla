----------------------------- MODULE TraceRec -----------------------------
(* Trace validation: is a recorded history a behaviour of LockRec?          *)
(* After Cirstea, Kuppe, Loillier and Merz, "Validating Traces of           *)
(* Distributed Programs Against TLA+ Specifications" (SEFM 2024).           *)
(*                                                                          *)
(* A history is what one store did to one resource, command by command. For *)
(* each command it says what the clock had ended by then (over, lapsed,     *)
(* missed, shut, given), the requests of LockRec that the command stands    *)
(* for, and what the store had then (seen). Clients are not observed: any   *)
(* of them may ask anything at any time. So only the doorman, its fences    *)
(* and what follows from them are checked.                                  *)
(*                                                                          *)
(* Some of a doorman is not seen, and LockRec says what it is: the tickets  *)
(* of queue entries; `admitted` while nobody keeps readers out, and of who  *)
(* is late, when it means nothing; `upgraded` while nobody writes.          *)
(*                                                                          *)
(* Histories are checked one beside the other, each from its initial state. *)
(* TLC prints how many commands of each are left: a history is accepted if  *)
(* none is. The invariants are LockRec's own.                               *)
EXTENDS LockRec
CONSTANT Traces  \* a sequence of histories
VARIABLES which, left, timely, todo
\* the history; its commands that are left; whether the time of the first of them has
\* come; and its requests that are left.  (As TLC evaluates Traces at each use, the
\* commands are kept in the state.)
tracing == <<vars, which, left, timely, todo>>

Command == Head(left)

TraceInit == /\ Init
             /\ which \in DOMAIN Traces
             /\ left = Traces[which]
             /\ timely = FALSE /\ todo = Command.requests

---------------------------------------------------------------------------
(* Time passes until the store's clock shows the time of the command *)
Late(i) == Pair(rec.queue[i]) \in Command.missed /\ ~rec.queue[i].late
Closes == Command.shut /\ WriterWaits(rec) /\ Admitted(rec) # {}
Due == \/ \E h \in rec.grants : h.t \in Command.over
       \/ \E i \in DOMAIN rec.queue : Pair(rec.queue[i]) \in Command.lapsed \/ Late(i)
       \/ Closes \/ (Command.given /\ rec.slot # {})
Pass ==
  /\ ~timely /\ left # <<>>
  /\ IF ~Due THEN timely' = TRUE /\ UNCHANGED vars
     ELSE /\ \/ \E h \in rec.grants : h.t \in Command.over /\ Expire(h)
             \/ \E i \in DOMAIN rec.queue :
                  \/ Pair(rec.queue[i]) \in Command.lapsed /\ ExpirePlace(rec.queue[i])
                  \/ Late(i) /\ GetLate(i)
             \/ Closes /\ WindowCloses
             \/ Command.given /\ SlotLapses
          /\ UNCHANGED timely
  /\ UNCHANGED <<which, left, todo>>

(* The store serves the requests of the command *)
Arrives(x) ==
  CASE x.op = "leave" ->  \* the client takes its entry away: as if it had run out
         IF HasPlace(rec, x.g, x.m)
         THEN ExpirePlace(rec.queue[Number(rec, x.g, x.m)]) ELSE UNCHANGED vars
    [] x.op = "give up" ->  \* a reader waits no more for its upgrade
         IF x.g \in rec.slot THEN SlotLapses ELSE UNCHANGED vars
    [] x.op = "force" ->  \* an expiry that comes early
         IF Held(rec, x.new) THEN Expire(GrantOf(rec, x.new)) ELSE UNCHANGED vars
    [] OTHER -> Serve(x) /\ UNCHANGED <<cl, late, highest>>
ServeNext ==
  /\ timely /\ todo # <<>>
  /\ Arrives(Head(todo))
  /\ todo' = Tail(todo) /\ UNCHANGED <<which, left, timely>>

(* What the store has then is what LockRec has *)
SameEntry(p, q) ==
  /\ Pair(p) = Pair(q) /\ p.late = q.late
  /\ (WriterWaits(rec) \/ Writing(rec)) /\ ~p.late => p.admitted = q.admitted
Agrees(stored) ==
  /\ rec.grants = stored.grants
  /\ rec.last = stored.last
  /\ rec.slot = stored.slot
  /\ Writing(rec) => rec.upgraded = stored.upgraded
  /\ Len(rec.queue) = Len(stored.queue)
  /\ \A i \in DOMAIN rec.queue : SameEntry(rec.queue[i], stored.queue[i])
Observe ==
  /\ timely /\ todo = <<>> /\ left # <<>>
  /\ Agrees(Command.seen)
  /\ left' = Tail(left) /\ timely' = FALSE
  /\ todo' = IF left' = <<>> THEN <<>> ELSE Head(left').requests
  /\ PrintT(<<"left", which, Len(left')>>)
  /\ UNCHANGED <<vars, which>>

TraceSpec == TraceInit /\ [][Pass \/ ServeNext \/ Observe]_tracing
=============================================================================
