"""The command line ``rwlock``; needs the extra ``cli`` (click and rich)."""
