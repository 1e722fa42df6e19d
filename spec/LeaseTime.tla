----------------------------- MODULE LeaseTime -----------------------------
(* Timed model of ONE exclusive lease: how long may a client act on its own *)
(* clock?  Real time is discrete.  A client's clock may be slow: it believes*)
(* up to Drift units too long.  The store's clock may step forward once.    *)
EXTENDS Integers, FiniteSets
CONSTANTS
  Clients,
  Lease,
  MaxTime,
  Anchor,      \* "send": the deadline counts from before the request was sent
               \* "reply": from when the reply came (negative control)
  Margin,      \* the client's deadline is this much before the lease's end
  Drift,
  StoreJump,   \* how far the store's clock may step
  Push         \* the store grants to an idle client and pushes the news; the
               \* client enters without a round trip (negative control)
VARIABLES now, jumped, holder, expires, st, sent, reply, anchor, slow
vars == <<now, jumped, holder, expires, st, sent, reply, anchor, slow>>
store == <<now, jumped, holder, expires>>

StoreNow == now + jumped
Free == holder = "none" \/ expires <= StoreNow
Init == /\ now = 0 /\ jumped = 0 /\ holder = "none" /\ expires = 0
        /\ st = [c \in Clients |-> "idle"]       \* idle, acquire, in, renew
        /\ sent = [c \in Clients |-> 0]
        /\ reply = [c \in Clients |-> "none"]    \* none, granted, refused, pushed
        /\ anchor = [c \in Clients |-> 0]
        /\ slow \in [Clients -> 0..Drift]

\* what held.check() says
Believes(c) == st[c] \in {"in", "renew"} /\ now < anchor[c] + Lease - Margin + slow[c]

Tick == /\ now < MaxTime /\ now' = now + 1
        /\ UNCHANGED <<jumped, holder, expires, st, sent, reply, anchor, slow>>
Jump == /\ jumped = 0 /\ StoreJump > 0 /\ jumped' = StoreJump
        /\ UNCHANGED <<now, holder, expires, st, sent, reply, anchor, slow>>
Send(c) == /\ st[c] \in {"idle", "in"} /\ reply[c] = "none"
           /\ st' = [st EXCEPT ![c] = IF @ = "idle" THEN "acquire" ELSE "renew"]
           /\ sent' = [sent EXCEPT ![c] = now]
           /\ UNCHANGED <<store, reply, anchor, slow>>
Grant(c, how) == /\ holder' = c /\ expires' = StoreNow + Lease
                 /\ reply' = [reply EXCEPT ![c] = how]
                 /\ UNCHANGED <<now, jumped, st, sent, anchor, slow>>
Serve(c) == /\ st[c] \in {"acquire", "renew"} /\ reply[c] = "none"
            /\ IF (st[c] = "acquire" /\ (Free \/ holder = c)) \/ (holder = c /\ ~Free)
               THEN Grant(c, "granted")
               ELSE /\ reply' = [reply EXCEPT ![c] = "refused"]
                    /\ UNCHANGED <<store, st, sent, anchor, slow>>
PushGrant(c) == Push /\ st[c] = "idle" /\ reply[c] = "none" /\ Free /\ Grant(c, "pushed")
Receive(c) == /\ reply[c] # "none" /\ reply' = [reply EXCEPT ![c] = "none"]
              /\ st' = [st EXCEPT ![c] = IF reply[c] = "refused" THEN "idle" ELSE "in"]
              /\ anchor' = [anchor EXCEPT ![c] =
                   CASE reply[c] = "refused" -> 0
                     [] reply[c] = "granted" /\ Anchor = "send" -> sent[c]
                     [] OTHER -> now]    \* a pushed grant has no request to count from
              /\ sent' = [sent EXCEPT ![c] = 0]
              /\ UNCHANGED <<store, slow>>
Release(c) == /\ st[c] = "in" /\ reply[c] = "none"
              /\ st' = [st EXCEPT ![c] = "idle"]
              /\ holder' = IF holder = c THEN "none" ELSE holder
              /\ anchor' = [anchor EXCEPT ![c] = 0]
              /\ UNCHANGED <<now, jumped, expires, sent, reply, slow>>
Next == \/ Tick \/ Jump
        \/ \E c \in Clients : \/ Send(c) \/ Serve(c) \/ Receive(c) \/ Release(c)
                              \/ PushGrant(c)
Spec == Init /\ [][Next]_vars
---------------------------------------------------------------------------
\* no client believes to hold while another one believes so too
OneBeliever == Cardinality({c \in Clients : Believes(c)}) <= 1
=============================================================================
