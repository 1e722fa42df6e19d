---------------------------- MODULE PushedGrant ----------------------------
(* Timed model of ONE exclusive lease that a step may grant to a waiting    *)
(* client by a message.  When may the client believe such a message?        *)
(*                                                                          *)
(* The client has polled before: a request sent at time t was answered with *)
(* the store's clock s.  Its bound on the store's clock is s + (time since  *)
(* t, by its own clock).  It enters if the bound has not reached the end    *)
(* that the message names, less a margin, and stops to believe when the     *)
(* bound reaches it, unless a renewal has confirmed the grant.              *)
(*                                                                          *)
(* Messages may be lost, late and doubled: each that was ever sent may be   *)
(* read at any time, any number of times.  Anybody may forge one.  Replies  *)
(* are late; a client may be stopped between any two steps.                 *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS
  Clients,
  Attempts,    \* tickets of each client, one after the other
  Lease,       \* of a grant that was asked for, and of a renewal
  Window,      \* of a pushed grant
  MaxTime,
  Margin,      \* a client stops this long before the end
  Drift,       \* how far a client's clock may fall behind
  StoreJump,   \* how far the store's clock may step forward, once
  Moves,       \* the step is that of a slot to a cluster's other node: its clients
               \* forget the former node's clock, and hear its messages no more
  MaxLate,     \* bound on the requests of tickets that were given up
  Bound,       \* "sent" : counted from when the poll was sent
               \* "reply": from when its reply came         (negative control)
               \* "none" : from when the message came       (negative control)
  Proof,       \* a message must prove that its sender knows the ticket; FALSE:
               \* a forged one is believed                  (negative control)
  Hears        \* "ticket": a message is for the ticket it names
               \* "client": for whatever its client waits with (negative control)
VARIABLES now, jumped, grant, fence, queue, sent, late, cl, entered, bad
vars == <<now, jumped, grant, fence, queue, sent, late, cl, entered, bad>>
store == <<now, jumped, grant, fence, queue, sent, late>>

Max(a, b) == IF a > b THEN a ELSE b
StoreNow == now + jumped
NoTicket == <<"none", 0>>
NoGrant == [t |-> NoTicket, f |-> 0, ends |-> 0]
Free == grant.ends <= StoreNow
HeldBy(t) == grant.t = t /\ ~Free
\* A client: its ticket's number n; `lead`: its bound on the store's clock less
\* the time; `until`: when it stops to believe, in real time.
\* A request: `at` when it was sent; its reply: what it says of the lease (until when
\* the client may believe) or of the store's clock (`lead`).
NoRequest == [op |-> "none", at |-> 0, reply |-> "none", f |-> 0, says |-> 0]
Idle(n, slow) == [st |-> "idle", n |-> n, slow |-> slow, known |-> FALSE, lead |-> 0,
                  until |-> 0, f |-> 0, req |-> NoRequest]
Ticket(c) == <<c, cl[c].n>>
Believes(c) == cl[c].st = "in" /\ now < cl[c].until

Init == /\ now = 0 /\ jumped = 0 /\ grant = NoGrant /\ fence = 0
        /\ queue = {} /\ sent = {} /\ late = {} /\ entered = 0 /\ bad = {}
        /\ \E slow \in [Clients -> 0..Drift] : cl = [c \in Clients |-> Idle(0, slow[c])]

---------------------------------------------------------------------------
(* The store *)
\* A step of any client, or none's: the lease of a ticket, asked for or pushed.
GrantTo(t, ends) == /\ grant' = [t |-> t, f |-> fence + 1, ends |-> ends]
                    /\ fence' = fence + 1
\* The entry stays in the queue: if the message is lost, its client kept its turn.
Push == /\ Free
        /\ \E t \in queue :
             /\ GrantTo(t, StoreNow + Window)
             /\ sent' = sent \cup {[t |-> t, f |-> fence + 1, ends |-> StoreNow + Window]}
        /\ UNCHANGED <<now, jumped, queue, late, cl, entered, bad>>
Poll(t) == IF HeldBy(t)
           THEN /\ grant' = [grant EXCEPT !.ends = Max(@, StoreNow + Lease)]
                /\ queue' = queue \ {t} /\ UNCHANGED fence
           ELSE IF Free
           THEN GrantTo(t, StoreNow + Lease) /\ queue' = queue \ {t}
           ELSE queue' = queue \cup {t} /\ UNCHANGED <<grant, fence>>
Renew(t) == /\ grant' = IF HeldBy(t) THEN [grant EXCEPT !.ends = Max(@, StoreNow + Lease)] ELSE grant
            /\ queue' = IF HeldBy(t) THEN queue \ {t} ELSE queue
            /\ UNCHANGED fence
\* Whatever became of the ticket: its grant ends, pushed or not, and so does its entry.
Withdraw(t) == /\ grant' = IF grant.t = t THEN NoGrant ELSE grant
               /\ queue' = queue \ {t} /\ UNCHANGED fence
Serve(c) ==
  LET me == cl[c]  t == Ticket(c) IN
  /\ me.req.op # "none" /\ me.req.reply = "none"
  /\ IF me.req.op = "poll" THEN Poll(t) ELSE Renew(t)
  /\ LET granted == grant'.t = t /\ grant'.ends > StoreNow
         answer == IF granted
                   THEN [reply |-> "granted", f |-> grant'.f, says |-> me.req.at + Lease - Margin + me.slow]
                   ELSE [reply |-> "refused", f |-> 0,
                         says |-> IF me.req.op = "renew" THEN 0
                                  ELSE StoreNow - IF Bound = "reply" THEN 0 ELSE me.req.at] IN
     cl' = [cl EXCEPT ![c].req = answer @@ [op |-> me.req.op, at |-> 0]]
  /\ UNCHANGED <<now, jumped, sent, late, entered, bad>>
Arrive(x) == /\ late' = late \ {x}
             /\ IF x.op = "poll" THEN Poll(x.t) ELSE Withdraw(x.t)
             /\ UNCHANGED <<now, jumped, sent, cl, entered, bad>>

---------------------------------------------------------------------------
(* Clients *)
Send(c, op) == [cl[c].req EXCEPT !.op = op, !.at = now]
Ask(c) ==
  LET me == cl[c]  first == me.st = "idle" IN
  /\ me.st \in {"idle", "wait"} /\ me.req.op = "none"
  /\ first => me.n < Attempts
  /\ cl' = [cl EXCEPT ![c] = [(IF first THEN Idle(me.n + 1, me.slow) ELSE me) EXCEPT
       !.st = "wait", !.req = Send(c, "poll")]]
  /\ UNCHANGED <<store, entered, bad>>
\* The confirmation of a pushed grant is a renewal, and so is any later one.
Confirm(c) == /\ cl[c].st = "in" /\ cl[c].req.op = "none"
              /\ cl' = [cl EXCEPT ![c].req = Send(c, "renew")]
              /\ UNCHANGED <<store, entered, bad>>
\* A client enters, or goes on, if it has time left; else it knows that it must ask.
Enter(c, f, until, req) ==
  LET me == cl[c]  last == Max(me.until, until) IN
  /\ cl' = [cl EXCEPT ![c] =
       IF now < last THEN [me EXCEPT !.st = "in", !.f = f, !.until = last, !.req = req]
       ELSE [me EXCEPT !.req = req]]
  /\ entered' = IF now < last THEN Max(entered, f) ELSE entered
  /\ bad' = IF now < last /\ f < entered THEN bad \cup {"fence"} ELSE bad
Receive(c) ==
  LET me == cl[c]  x == me.req IN
  /\ x.reply # "none" /\ UNCHANGED store
  /\ IF x.reply = "granted"
     THEN Enter(c, x.f, x.says, NoRequest)
     ELSE /\ cl' = [cl EXCEPT ![c] =
               IF x.op = "renew" THEN Idle(me.n, me.slow)     \* LockLost
               ELSE [me EXCEPT !.req = NoRequest, !.known = TRUE,
                      !.lead = x.says - IF Bound = "reply" THEN now ELSE 0]]
          /\ UNCHANGED <<entered, bad>>
\* When the bound on the store's clock reaches the end of the message, in real time.
Until(c, m) ==
  IF Bound = "none" THEN now + Window - Margin + cl[c].slow
  ELSE m.ends - cl[c].lead - Margin + cl[c].slow
Forged(c) == IF Proof THEN {}
             ELSE [t : {Ticket(c)}, f : {fence}, ends : {StoreNow + Window}]
Hear(c) ==
  /\ cl[c].st = "wait" /\ (cl[c].known \/ Bound = "none")
  /\ \E m \in sent \cup Forged(c) :
       /\ IF Hears = "ticket" THEN m.t = Ticket(c) ELSE m.t[1] = c
       /\ now < Until(c, m)
       /\ Enter(c, m.f, Until(c, m), cl[c].req)
  /\ UNCHANGED store
\* It leaves, or stops to wait: a release or a withdrawal of its ticket, and perhaps
\* the request under way, arrive some time, or get lost.
Leave(c) ==
  LET t == Ticket(c)
      pending == IF cl[c].req.op = "poll" /\ cl[c].req.reply = "none"
                 THEN {[op |-> "poll", t |-> t]} ELSE {} IN
  /\ cl[c].st # "idle"
  /\ cl' = [cl EXCEPT ![c] = Idle(cl[c].n, cl[c].slow)]
  /\ \E add \in SUBSET (pending \cup {[op |-> "withdraw", t |-> t]}) :
       /\ late' = late \cup add /\ Cardinality(late \cup add) <= MaxLate
  /\ UNCHANGED <<now, jumped, grant, fence, queue, sent, entered, bad>>

\* What can have no effect any more is forgotten, so that there are fewer states: an
\* expired grant, a message that is too late for each client, a belief that has ended
\* (its client's keeper says so, and it believes in no later answer).
Ended(c, t) == cl[c].st = "in" /\ cl[c].until <= t
Past(clock) == grant' = IF grant.ends <= clock THEN NoGrant ELSE grant
Tick == /\ now < MaxTime /\ now' = now + 1 /\ Past(StoreNow + 1)
        /\ sent' = {m \in sent : Bound # "sent" \/ now + 1 < m.ends - Margin + Drift}
        /\ cl' = [c \in Clients |-> IF Ended(c, now + 1) THEN Idle(cl[c].n, cl[c].slow) ELSE cl[c]]
        /\ UNCHANGED <<jumped, fence, queue, late, entered, bad>>
\* A reply of the former node that its client has not read yet is lost with it.
Forget(me) == [me EXCEPT !.known = FALSE,
                         !.req = IF @.reply = "refused" THEN NoRequest ELSE @]
Jump == /\ jumped = 0 /\ StoreJump > 0 /\ jumped' = StoreJump /\ Past(now + StoreJump)
        /\ sent' = IF Moves THEN {} ELSE sent
        /\ cl' = [c \in Clients |-> IF Moves THEN Forget(cl[c]) ELSE cl[c]]
        /\ UNCHANGED <<now, fence, queue, late, entered, bad>>
Next == \/ Tick \/ Jump \/ Push
        \/ \E c \in Clients : \/ Ask(c) \/ Serve(c) \/ Receive(c) \/ Hear(c)
                              \/ Confirm(c) \/ Leave(c)
        \/ \E x \in late : Arrive(x)
Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Clients)
---------------------------------------------------------------------------
\* no client believes to hold while another one believes so too
OneBeliever == Cardinality({c \in Clients : Believes(c)}) <= 1
\* and what it believes is true in the store: its ticket, its fence, not expired;
\* a client that left while its release was on its way believes nothing
BeliefIsTrue == \A c \in Clients :
  Believes(c) => grant.t = Ticket(c) /\ grant.f = cl[c].f /\ ~Free
\* those who enter do so in the order of their fences
FencesRise == "fence" \notin bad
=============================================================================
