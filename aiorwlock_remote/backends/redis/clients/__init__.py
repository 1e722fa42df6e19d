"""Connections that are opened as a user's own client opens them."""
