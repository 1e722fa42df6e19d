"""Connections of drivers that know asyncio only, and requests over them."""
