------------------------------ MODULE LockRec ------------------------------
(* Safety: ONE doorman per resource, ONE atomic transition per command,     *)
(* leases, tickets, a queue, moves between the modes and owners, fences.    *)
(*                                                                          *)
(* Asynchrony.  A client may be arbitrarily slow between any two of its own *)
(* steps (GC pause, SIGSTOP, partition).  A grant or an entry may run out   *)
(* (or be forced out) at any moment.  Replies get lost: the client asks     *)
(* again.  A request that was given up or repeated may reach the store      *)
(* later, while no more than MaxLate of them are on their way.              *)
EXTENDS Turn, TLC
CONSTANTS
  Clients,
  Twice,        \* clients with two tickets; the others have one
  MaxFence,     \* bound on the fence
  MaxLate,
  Policies,     \* each acquire carries one of them
  KeepsPlace,   \* who asks again keeps the place in the queue
  Commands,     \* among "next" "down" "up": what a holder may send; "adopt"
  Fence,        \* "phase"  : a new one per write grant and per batch of readers
                \* "writers": readers carry the last writer's (negative control)
                \* "each"   : joining readers get their own   (negative control)
  MovesFence,   \* a downgrade or an upgrade starts a new phase
  Adopts,       \* "anew"       : a new ticket in place of the old one, a writer's in
                \*                a new phase; otherwise, as negative controls:
                \* "same phase" : a writer's grant keeps its fence as well
                \* "same ticket": under the very ticket that was given away
                \* "beside"     : the old ticket goes on being accepted
                \* "late"       : an expired grant as well, while there is no holder
  ReadsRaise,   \* the resource raises its highest fence on reads too
  FreshTicket,  \* a new ticket for every attempt
  Forget,       \* an idle doorman may vanish (eviction, end of fence_memory)
  Clock         \* "none": fence = last + 1.  "runs": floored by the store's
                \* clock.  "back": the clock was set back while the doorman was gone
VARIABLES rec, clk, cl, late, highest, seen, bad, came
vars == <<rec, clk, cl, late, highest, seen, bad, came>>

Max(a, b) == IF a > b THEN a ELSE b
NoTicket == <<"", 0>>
NoRequest == [op |-> "none", g |-> "", m |-> "R", old |-> NoTicket, new |-> NoTicket]
\* A client: its grant (t, m, f), whether it ran out in the store (gone); whether
\* it has used the resource under this grant ("yes"), under the one it moved from
\* ("before") or not ("no"); whether another client wrote or touched it since.
\* An adopter continues from another's ticket, and from what was used under it.
Idle(n) == [st |-> "idle", req |-> NoRequest, n |-> n, t |-> NoTicket, m |-> "R", f |-> 0,
            from |-> NoTicket, gone |-> FALSE,
            used |-> "no", wrote |-> FALSE, touched |-> FALSE]

Init == /\ rec = [last |-> 0] @@ Empty
        /\ clk = 0 /\ late = {} /\ highest = 0
        /\ cl = [c \in Clients |-> Idle(0)]
        /\ seen = [writes |-> 0, all |-> 0]
        /\ bad = {} /\ came = <<>>

---------------------------------------------------------------------------
(* The commands: pure functions of the doorman, idempotent by ticket        *)
Pair(p) == <<p.g, p.m>>
Held(r, t) == \E h \in r.grants : h.t = t
GrantOf(r, t) == CHOOSE h \in r.grants : h.t = t
NewFence(r) == IF Clock = "none" THEN r.last + 1 ELSE Max(r.last + 1, clk + 1)
Granted(r, x, f, others) ==
  [r EXCEPT !.last = f, !.grants = others \cup {[g |-> x.g, m |-> x.m, t |-> x.new, f |-> f]}]

Acquire(r, x, policy) ==
  LET asked == Asked(r, [g |-> x.g, m |-> x.m, t |-> x.new, admitted |-> FALSE, late |-> FALSE])
      i == Number(asked, x.g, x.m)
      joins == x.m = "R" /\ (Fence = "writers" \/ (Fence = "phase" /\ r.grants # {})) IN
  IF Held(r, x.new) THEN r
  ELSE IF MayEnter(asked, i, policy)
  THEN LET left == WithoutPlace(r, x.g, x.m)
           open == IF x.m = "W" THEN CloseWindow(left) ELSE left IN
       [Granted(open, x, IF joins THEN r.last ELSE NewFence(r), r.grants)
          EXCEPT !.upgraded = FALSE]
  ELSE LET entry == [asked.queue[i] EXCEPT !.t = x.new] IN
       IF KeepsPlace THEN [asked EXCEPT !.queue[i] = entry]
       ELSE [asked EXCEPT !.queue = Append(WithoutPlace(asked, x.g, x.m).queue, entry)]
Release(r, t) ==  \* withdraw is the same: whatever became of this ticket
  [r EXCEPT !.grants = {h \in @ : h.t # t}, !.queue = SelectSeq(@, LAMBDA p : p.t # t)]
Moved(r, x) == Granted(r, x, IF MovesFence THEN NewFence(r) ELSE r.last, {})
CanMove(r, x, from) == ~Held(r, x.new) /\ Held(r, x.old) /\ GrantOf(r, x.old).m = from
Downgrade(r, x) == IF CanMove(r, x, "W") THEN Moved(r, x) ELSE r
Upgrade(r, x) ==
  IF ~CanMove(r, x, "R") \/ UpgradeConflict(r, x.g) THEN r
  ELSE IF MayUpgrade(r, x.g)
  THEN [Moved(CloseWindow(r), x) EXCEPT !.slot = {}, !.upgraded = TRUE]
  ELSE [r EXCEPT !.slot = @ \cup {x.g}]
\* no client leaves: readers of the phase stay, waiters go on waiting
Adopt(r, x) ==
  IF Held(r, x.new) /\ GrantOf(r, x.new).g = x.g THEN r
  ELSE IF ~Held(r, x.old)
  THEN IF Adopts = "late" /\ r.grants = {} THEN Granted(r, x, NewFence(r), {}) ELSE r
  ELSE LET old == GrantOf(r, x.old)
           f == IF old.m = "W" /\ Adopts # "same phase" THEN NewFence(r) ELSE r.last IN
       [Granted(r, x, f, IF Adopts = "beside" THEN r.grants ELSE r.grants \ {old})
          EXCEPT !.slot = @ \ {old.g}]

\* What a request to acquire finds.
Found(x) == IF x.op = "next" THEN Settled(rec, Release(rec, x.old)) ELSE rec
After(x, policy) ==
  CASE x.op \in {"acquire", "next"} -> Settled(Found(x), Acquire(Found(x), x, policy))
    [] x.op = "release" -> Settled(rec, Release(rec, x.new))
    [] x.op = "down"    -> Settled(rec, Downgrade(rec, x))
    [] x.op = "up"      -> Settled(rec, Upgrade(rec, x))
    [] x.op = "adopt"   -> Settled(rec, Adopt(rec, x))
\* Who waits, in the order in which they came: told by their first requests, not by the
\* queue.  A request to acquire is granted: has its client passed an earlier writer that
\* did not miss its window?  Admitted readers may, as may those that ask for "reader".
Came(r) ==
  LET stay == SelectSeq(came, LAMBDA p : HasPlace(r, p.g, p.m))
      new == SelectSeq(r.queue, LAMBDA p : \A i \in DOMAIN stay : Pair(stay[i]) # Pair(p)) IN
  stay \o [i \in DOMAIN new |-> [g |-> new[i].g, m |-> new[i].m]]
Passes(x, policy) ==
  LET r == Found(x)
      mine == {i \in DOMAIN came : Pair(came[i]) = Pair(x)}
      admitted == \E i \in Position(r, x.g, x.m) : r.queue[i].admitted
      may == x.m = "R" /\ (policy # "fair" \/ admitted) IN
  /\ x.op \in {"acquire", "next"} /\ ~may
  /\ \E i \in DOMAIN came :
       /\ \A j \in mine : i < j
       /\ \E k \in Position(r, came[i].g, "W") : came[i].m = "W" /\ ~r.queue[k].late
\* The store serves a request.  Fences must order the grants: a write grant above
\* every fence handed out, a read grant above every writer's and below none.
Disordered(h) == h.f < seen.all \/ h.f <= seen.writes \/ (h.m = "W" /\ h.f <= seen.all)
Serve(x) == \E policy \in IF x.op \in {"acquire", "next"} THEN Policies ELSE {"fair"} :
  /\ rec' = After(x, policy) /\ came' = Came(rec')
  /\ IF rec'.grants \subseteq rec.grants THEN UNCHANGED <<clk, seen, bad>>
     ELSE LET h == CHOOSE h \in rec'.grants \ rec.grants : TRUE IN
          /\ clk' = IF Clock = "none" THEN clk ELSE clk + 1
          /\ seen' = [writes |-> IF h.m = "W" THEN Max(seen.writes, h.f) ELSE seen.writes,
                      all |-> Max(seen.all, h.f)]
          /\ bad' = bad \cup (IF Disordered(h) THEN {"fence"} ELSE {})
                        \cup (IF Passes(x, policy) THEN {"order"} ELSE {})

---------------------------------------------------------------------------
(* Clients *)
Begin(c, op, m) ==
  LET me == cl[c]
      new == <<c, IF FreshTicket THEN me.n + 1 ELSE 1>> IN
  /\ me.n < IF c \in Twice THEN 2 ELSE 1
  /\ CASE op = "acquire" -> me.st = "idle"
       [] op = "next"    -> me.st = "in" /\ op \in Commands
       [] op = "down"    -> me.st = "in" /\ op \in Commands /\ me.m = "W" /\ m = "R"
       [] op = "up"      -> me.st = "in" /\ op \in Commands /\ me.m = "R" /\ m = "W"
  /\ cl' = [cl EXCEPT ![c] = [(IF op = "next" THEN Idle(0) ELSE me) EXCEPT
       !.st = "ask", !.n = me.n + 1,
       !.req = [op |-> op, g |-> c, m |-> m, old |-> me.t, new |-> new]]]
  /\ UNCHANGED <<rec, clk, late, highest, seen, bad, came>>
Moving(c) == cl[c].st = "ask" /\ cl[c].req.op \in {"down", "up"}

\* The owner gives its grant away: its ticket is known from then on.  What it still
\* sends to the resource arrives until it forgets.
Detach(c) == /\ cl[c].st = "in" /\ "adopt" \in Commands
             /\ cl' = [cl EXCEPT ![c].st = "gave"]
             /\ UNCHANGED <<rec, clk, late, highest, seen, bad, came>>
BeginAdoption(c, giver) ==
  LET me == cl[c]  old == cl[giver].t
      new == IF Adopts = "same ticket" THEN old ELSE <<c, me.n + 1>> IN
  /\ me.st = "idle" /\ cl[giver].st = "gave"
  /\ me.n < IF c \in Twice THEN 2 ELSE 1
  /\ cl' = [cl EXCEPT ![c].st = "ask", ![c].n = me.n + 1,
       ![c].req = [op |-> "adopt", g |-> c, m |-> cl[giver].m, old |-> old, new |-> new]]
  /\ UNCHANGED <<rec, clk, late, highest, seen, bad, came>>
Adopting(c) == cl[c].st = "ask" /\ cl[c].req.op = "adopt"
\* What an adopter begins with: what its giver used, if that is still there.
Adopted(me, x) ==
  LET givers == {c \in Clients :
                   cl[c].st = "gave" /\ cl[c].t = x.old /\ cl[c].used = "yes"} IN
  IF givers = {} THEN [me EXCEPT !.from = x.old]
  ELSE [me EXCEPT !.from = x.old, !.used = "before",
                  !.wrote = cl[CHOOSE c \in givers : TRUE].wrote]

\* the request arrives; its reply is lost, or says no more than `wait`, or ..
Ask(c) ==
  LET me == cl[c]  x == me.req IN
  /\ me.st = "ask" /\ Serve(x)
  /\ \/ UNCHANGED cl
     \/ /\ Held(rec', x.new) /\ GrantOf(rec', x.new).m = x.m                  \* granted
        /\ cl' = [cl EXCEPT ![c] = [(IF Adopting(c) THEN Adopted(me, x) ELSE me) EXCEPT
             !.st = "in", !.req = NoRequest, !.t = x.new, !.m = x.m,
             !.f = GrantOf(rec', x.new).f, !.gone = FALSE,
             !.used = IF @ = "no" THEN "no" ELSE "before", !.touched = FALSE]]
     \/ /\ (Moving(c) \/ Adopting(c))                                         \* not held
        /\ ~Held(rec', x.old) /\ ~Held(rec', x.new)
        /\ cl' = [cl EXCEPT ![c] = Idle(me.n)]
     \/ /\ Moving(c) /\ Held(rec', x.old) /\ UpgradeConflict(rec', c)         \* conflict
        /\ cl' = [cl EXCEPT ![c] = [me EXCEPT !.st = "in", !.req = NoRequest]]
  /\ UNCHANGED <<late, highest>>

\* timeout or cancellation: the request and its clean-up stay in the network; a
\* client that detached its grant may have sent a release of it too
Give(t) == [NoRequest EXCEPT !.op = "release", !.new = t]
Send(requests) == /\ Cardinality(late \cup requests) <= MaxLate
                  /\ late' = late \cup requests
GiveUp(c) ==
  /\ cl[c].st \in {"ask", "gave"}
  /\ LET x == cl[c].req
         left == IF cl[c].st = "gave" THEN {Give(cl[c].t)}
                 ELSE {x, Give(x.old), Give(x.new)} IN
     \E add \in SUBSET left : Send(add)
  /\ cl' = [cl EXCEPT ![c] = Idle(cl[c].n)]
  /\ UNCHANGED <<rec, clk, highest, seen, bad, came>>

\* One access to the protected resource, presenting the fence.  While a move is
\* under way the earlier accesses still arrive, and so do those of a former owner;
\* to its adopter they are not foreign as long as the adopter has made none itself.
Access(c) ==
  LET me == cl[c]
      fenced == me.m = "W" \/ ReadsRaise
      disturbed == me.used # "no" /\ (me.wrote \/ (me.m = "W" /\ me.used = "yes" /\ me.touched))
      unjust == ~me.gone /\ Held(rec, me.t) /\ GrantOf(rec, me.t).f = me.f IN
  /\ me.st \in {"in", "gave"} \/ Moving(c)
  /\ IF fenced /\ me.f < highest
     THEN /\ cl' = [cl EXCEPT ![c] = Idle(me.n)]    \* refused: it learns of its loss
          /\ bad' = IF unjust THEN bad \cup {"refused"} ELSE bad
          /\ UNCHANGED highest
     ELSE /\ cl' = [d \in Clients |->
               IF d = c THEN [me EXCEPT !.used = "yes", !.wrote = FALSE, !.touched = FALSE]
               ELSE IF cl[d].used = "no" \/ (cl[d].used = "before" /\ cl[d].from = me.t)
               THEN cl[d]
               ELSE [cl[d] EXCEPT !.touched = TRUE, !.wrote = @ \/ me.m = "W"]]
          /\ bad' = IF disturbed THEN bad \cup {"disturbed"} ELSE bad
          /\ highest' = IF fenced THEN me.f ELSE highest
  /\ UNCHANGED <<rec, clk, late, seen, came>>

Leave(c) == /\ cl[c].st = "in"
            /\ Serve(Give(cl[c].t))
            /\ cl' = [cl EXCEPT ![c] = Idle(cl[c].n)]
            /\ \/ UNCHANGED late
               \/ Send({Give(cl[c].t)})   \* the driver repeated it
            /\ UNCHANGED highest

---------------------------------------------------------------------------
(* Environment *)
Arrive(x) == /\ Serve(x) /\ late' = late \ {x} /\ UNCHANGED <<cl, highest>>
Change(r) == rec' = Settled(rec, r) /\ came' = Came(rec') /\ UNCHANGED <<clk, late, highest, seen, bad>>
Expire(h) == /\ Change([rec EXCEPT !.grants = @ \ {h}])
             /\ cl' = [c \in Clients |-> IF cl[c].t = h.t THEN [cl[c] EXCEPT !.gone = TRUE] ELSE cl[c]]
ExpirePlace(p) == Change(WithoutPlace(rec, p.g, p.m)) /\ UNCHANGED cl
\* A client was offered the resource and did not claim it within its window.
GetLate(i) == /\ (rec.grants = {} /\ i \in Writers(rec)) \/ i \in Admitted(rec)
              /\ Change([rec EXCEPT !.queue[i].late = TRUE, !.queue[i].admitted = FALSE])
              /\ UNCHANGED cl
WindowCloses == /\ WriterWaits(rec) /\ Admitted(rec) # {}
                /\ Change(CloseWindow(rec)) /\ UNCHANGED cl
\* A reader's waiting for its upgrade ends: its time is over, or it gave up.
SlotLapses == rec.slot # {} /\ Change([rec EXCEPT !.slot = {}]) /\ UNCHANGED cl
Vanish == /\ Forget /\ rec.grants = {} /\ rec.queue = <<>> /\ rec.last > 0
          /\ rec' = [rec EXCEPT !.last = 0] /\ clk' = IF Clock = "back" THEN 0 ELSE clk
          /\ UNCHANGED <<cl, late, highest, seen, bad, came>>

Next ==
  \/ \E c \in Clients : \/ \E m \in {"R", "W"}, op \in {"acquire", "next", "down", "up"} : Begin(c, op, m)
                        \/ \E giver \in Clients : BeginAdoption(c, giver)
                        \/ Detach(c) \/ Ask(c) \/ GiveUp(c) \/ Access(c) \/ Leave(c)
  \/ \E x \in late : Arrive(x)
  \/ \E h \in rec.grants : Expire(h)
  \/ \E i \in DOMAIN rec.queue : ExpirePlace(rec.queue[i]) \/ GetLate(i)
  \/ WindowCloses \/ SlotLapses \/ Vanish
Spec == Init /\ [][Next]_vars
Bound == rec.last <= MaxFence /\ clk <= MaxFence
Symmetry == Permutations(Twice) \cup Permutations(Clients \ Twice)
---------------------------------------------------------------------------
\* a writer is alone
Exclusion == \A h, k \in rec.grants : h # k => (h.m = "R" /\ k.m = "R")
\* all grants are of one phase, the last
OnePhase == \A h \in rec.grants : h.f = rec.last
\* what a client believes is true unless its own lease ran out
BeliefIsTrue == \A c \in Clients :
  LET me == cl[c] IN me.st = "in" /\ ~me.gone => [g |-> c, m |-> me.m, t |-> me.t, f |-> me.f] \in rec.grants
\* of two adopters one gets the grant
OneHeir == \A c, d \in Clients :
  c # d /\ cl[c].from # NoTicket => cl[c].from # cl[d].from
\* fences order the grants
FencesRise == "fence" \notin bad
\* clients enter in the order in which they came
InOrder == "order" \notin bad
\* no foreign access between two accesses of a writer, no foreign write between
\* two of a reader; a move keeps what was read or written before it
Isolated == "disturbed" \notin bad
\* a holder whose lease has not run out is never refused by the resource
NoFalseRefusal == "refused" \notin bad
Shape == /\ \A i, j \in DOMAIN rec.queue :
              rec.queue[i].g = rec.queue[j].g /\ rec.queue[i].m = rec.queue[j].m => i = j
         /\ \A i \in DOMAIN rec.queue : rec.queue[i].m = "W" => ~rec.queue[i].admitted
         /\ \A h, k \in rec.grants : h.t = k.t => h = k
         /\ Cardinality(rec.slot) <= 1
=============================================================================
