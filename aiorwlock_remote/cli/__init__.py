"""The command line ``rwlock``, which needs the extra ``cli`` (click and rich)."""
