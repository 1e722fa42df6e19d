------------------------------ MODULE Permits ------------------------------
(* A semaphore: up to `limit` permits of one resource, in order of arrival. *)
(*                                                                          *)
(* A client (one client id) has some tasks; each waits for a permit or has  *)
(* one.  The store sees one queue entry a client, with how many of its      *)
(* tasks wait.  A request of a client takes as many permits as are free for *)
(* it, and puts the rest of its tasks at the tail.                          *)
(*                                                                          *)
(* The limit travels with the request and may differ between clients.       *)
EXTENDS Integers, Sequences, FiniteSets, TLC
CONSTANTS
  Clients,
  Busy,       \* clients with two tasks; the others have one
  Limit,      \* of the semaphore
  Strict,     \* clients that think it is 1
  MaxCrash,   \* clients that may die, at any point
  Lossy,      \* notifications may be lost
  Patient,    \* an entry that missed one window is waited for next time
  Ordered,    \* what earlier entries wait for is not free   (FALSE: negative control)
  Least,      \* the least limit of holders and waiters counts, not only the
              \* client's own                                (FALSE: negative control)
  Behind      \* who was served queues at the tail           (FALSE: negative control)
VARIABLES held, queue, st, wants, dead
vars == <<held, queue, st, wants, dead>>

Tasks(c) == IF c \in Busy THEN 2 ELSE 1
LimitOf(c) == IF c \in Strict THEN 1 ELSE Limit
Live(c) == c \notin dead
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET x == CHOOSE x \in S : TRUE IN f[x] + Sum(f, S \ {x})
Held(h) == Sum(h, Clients)

Init == /\ held = [c \in Clients |-> 0]     \* permits of each client, in the store
        /\ queue = <<>>
        /\ st = [c \in Clients |-> "idle"]  \* "try": asks, "sleep": waits for a message
        /\ wants = [c \in Clients |-> 0]    \* how many of its tasks wait
        /\ dead = {}

---------------------------------------------------------------------------
(* The store *)
Before(q, i) == {j \in DOMAIN q : j < i /\ ~q[j].late}
LimitFor(h, q, i) ==
  IF ~Least THEN LimitOf(q[i].g)
  ELSE Min({LimitOf(q[i].g)} \cup {LimitOf(c) : c \in {c \in Clients : h[c] > 0}}
           \cup {LimitOf(q[j].g) : j \in Before(q, i)})
\* How many permits the client of entry i may take.
Room(h, q, i) ==
  LimitFor(h, q, i) - Held(h)
    - IF Ordered THEN Sum([j \in DOMAIN q |-> q[j].w], Before(q, i)) ELSE 0
Position(q, c) == {i \in DOMAIN q : q[i].g = c}
Without(q, c) == SelectSeq(q, LAMBDA p : p.g # c)
Fresh(c, w, missed) == [g |-> c, w |-> w, late |-> FALSE, missed |-> missed]
\* The queue when c asks with w tasks: its entry refreshed, or one at the tail.
Asked(c, w) ==
  IF Position(queue, c) = {} THEN Append(queue, Fresh(c, w, FALSE))
  ELSE [i \in DOMAIN queue |->
          IF queue[i].g = c THEN Fresh(c, w, queue[i].missed) ELSE queue[i]]
\* Whom a step wakes: who may take a permit now.
Told(h, q) == {q[i].g : i \in {i \in DOMAIN q : ~q[i].late /\ Room(h, q, i) > 0}}
Step(h, q, s) ==
  LET told == {c \in Told(h, q) : s[c] = "sleep"} IN
  /\ held' = h /\ queue' = q
  /\ \E lost \in IF Lossy THEN SUBSET told ELSE {{}} :
       st' = [c \in Clients |-> IF c \in told \ lost THEN "try" ELSE s[c]]

---------------------------------------------------------------------------
(* Clients *)
Want(c) == /\ Live(c) /\ wants[c] + held[c] < Tasks(c)
           /\ wants' = [wants EXCEPT ![c] = @ + 1]
           /\ st' = [st EXCEPT ![c] = IF @ = "idle" THEN "try" ELSE @]
           /\ UNCHANGED <<held, queue, dead>>
Try(c) ==
  /\ Live(c) /\ st[c] = "try"
  /\ LET q == Asked(c, wants[c])
         i == CHOOSE i \in DOMAIN q : q[i].g = c
         room == Room(held, q, i)
         take == IF room <= 0 THEN 0 ELSE Min({room, wants[c]})
         rest == wants[c] - take
         left == IF take = 0 THEN q
                 ELSE IF rest = 0 THEN Without(q, c)
                 ELSE IF Behind THEN Append(Without(q, c), Fresh(c, rest, FALSE))
                 ELSE [q EXCEPT ![i] = Fresh(c, rest, FALSE)] IN
     /\ wants' = [wants EXCEPT ![c] = rest]
     /\ Step([held EXCEPT ![c] = @ + take], left,
             [st EXCEPT ![c] = IF rest > 0 THEN "sleep" ELSE "idle"])
  /\ UNCHANGED dead
Poll(c) == /\ Live(c) /\ st[c] = "sleep"
           /\ st' = [st EXCEPT ![c] = "try"]
           /\ UNCHANGED <<held, queue, wants, dead>>
Release(c) == /\ Live(c) /\ held[c] > 0
              /\ Step([held EXCEPT ![c] = @ - 1], queue, st)
              /\ UNCHANGED <<wants, dead>>

---------------------------------------------------------------------------
(* Environment *)
Crash(c) == /\ Live(c) /\ Cardinality(dead) < MaxCrash
            /\ dead' = dead \cup {c} /\ UNCHANGED <<held, queue, st, wants>>
Silent(h, q) == held' = h /\ queue' = q /\ UNCHANGED <<st, wants, dead>>
ExpireGrant(c) == ~Live(c) /\ held[c] > 0 /\ Silent([held EXCEPT ![c] = @ - 1], queue)
ExpirePlace(c) == ~Live(c) /\ Position(queue, c) # {} /\ Silent(held, Without(queue, c))
\* an entry that could take a permit does not within its claim window
GetLate(i) == /\ ~queue[i].late /\ Room(held, queue, i) > 0
              /\ ~Live(queue[i].g) \/ ~(Patient /\ queue[i].missed)
              /\ Silent(held, [queue EXCEPT ![i].late = TRUE, ![i].missed = TRUE])

Next == \/ \E c \in Clients : \/ Want(c) \/ Try(c) \/ Poll(c) \/ Release(c)
                              \/ Crash(c) \/ ExpireGrant(c) \/ ExpirePlace(c)
        \/ \E i \in DOMAIN queue : GetLate(i)
\* Joined where the steps end each other: TLC looks at 2^n cases for n conditions.
Ask(c) == Try(c) \/ Poll(c)
Expire(c) == ExpireGrant(c) \/ ExpirePlace(c)
Fair == \A c \in Clients : WF_vars(Ask(c)) /\ WF_vars(Release(c)) /\ WF_vars(Expire(c))
Spec == Init /\ [][Next]_vars /\ Fair
---------------------------------------------------------------------------
\* No holder has more company than it was told.
WithinLimit == \A c \in Clients : held[c] > 0 => Held(held) <= LimitOf(c)
\* A live client whose tasks wait has an entry, or asks.
Queued == \A c \in Clients :
  Live(c) /\ wants[c] > 0 => st[c] = "try" \/ Position(queue, c) # {}
GetsOne(c) == (Live(c) /\ wants[c] > 0 /\ held[c] = 0) ~> (~Live(c) \/ held[c] > 0)
StarvationFree == \A c \in Clients : GetsOne(c)
=============================================================================
