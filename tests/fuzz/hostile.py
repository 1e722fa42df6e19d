"""Texts with a meaning to a store, a shell, a terminal, a page or a file system."""

from __future__ import annotations

HOSTILE: dict[str, str] = {
    "sql": "x'; DROP TABLE mutex_locks; --",
    "sql, double": 'x" OR "1"="1',
    "sql, backslash": "\\' OR 1=1 -- ",
    "sql, comment": "/*!50000 x */ #",
    "like": "%_",
    "like, one": "orde_",
    "cql": "x' IF EXISTS; TRUNCATE mutex_locks;",
    "lua": "]] redis.call('FLUSHALL') --[[",
    "glob": "*",
    "glob, set": "[a-z]?",
    "glob, escape": "\\*",
    "format": "%s %d {0} ${x} $1 $$",
    "notify": "a', 'b'); NOTIFY x; --",
    "resp": "a\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    "nul": "a\0b",
    "path": "../../order",
    "path, root": "/etc/passwd",
    "path, dots": "..",
    "device": "CON",
    "device, dotted": "nul.txt",
    "end": "order. ",
    "long": "x" * 5_000,
    "long, other": "x" * 4_999 + "y",
    "case": "ORDER",
    "composed": "ord\u00e9r",
    "decomposed": "orde\u0301r",
    "right to left": "\u202egpj.order",
    "terminal": "\x1b[2J\x1b]0;title\a",
    "page": "<script>alert(1)</script>&amp;",
    "sheet": "=cmd|' /C calc'!A0",
    "label": 'a"\\} 1',
    "slot": "{order}",
    "ours": "order%semaphore",
    "ours, cut": "order%~00",
    "ours, pair": "readlock:order:42",
}

PREFIXES: tuple[str, ...] = (
    *("*", "ab", "a?", "[a]b", "_b", "o'\"\\;--", "../", "\\*"),
)
"""None begins with another one; as patterns, some would match another one's names."""

REFUSED_PREFIXES: tuple[str, ...] = (
    "a%",
    "{a}",
    "a,b",
    "a\n",
    "a\0",
    "\x1b[",
    "x" * 101,
)
