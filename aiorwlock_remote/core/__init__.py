"""The rules of the locks as pure functions: no clock, no randomness, no I/O.

The modules decide who may enter, when a grant ends and what a waiter does next. The
current time, ``now``, is always an argument: microseconds of the store's clock.
"""
