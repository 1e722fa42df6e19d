"""The machinery behind ``Locks``: waiting, renewing, clean-up and the event loops."""
