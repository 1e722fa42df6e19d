"""The public classes: ``Locks``, ``Mutex``, ``RWLock``, ``Held`` and others."""
