"""Connections of asyncio database drivers, and the requests sent over them."""
