"""The public classes: thin, final, and the same for every store."""
