"""The moving parts: waiting, renewing, and the two event loops."""
