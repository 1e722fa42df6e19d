"""Connections made as a user's own client makes them."""
