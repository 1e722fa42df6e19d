"""The public classes, ``Locks``, ``Mutex``, ``RWLock``, ``Held`` …: one for all
stores.
"""
