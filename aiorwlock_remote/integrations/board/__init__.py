"""A live page of a store's locks: who holds what, since when and why, and who waits.

``asgi.board_app`` is for FastAPI, Starlette and other ASGI applications,
``aiohttp.board_app`` for aiohttp, and ``rwlock board`` serves the page by itself.
"""
