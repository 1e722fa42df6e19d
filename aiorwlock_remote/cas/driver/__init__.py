"""Connections of asyncio database drivers, and requests sent over them."""
