"""The pure part: what a lock is, with no clock, no randomness and no I/O.

Every rule about who may enter, when a grant ends and what a waiter does next lives here
and is a function of its arguments. ``now`` is always an argument, in microseconds of
the store's clock.
"""
