"""Logging in: who the client says it is, and that both know the password."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.servers.oracle.errors import OracleError
from tests.servers.oracle.fields import Reader, Writer

REFUSED = OracleError(1017, "invalid username/password; logon denied")

_ROUNDS = 4096
_KEY_ROUNDS = 3
_VERIFIER_12C = 0x4815

Parameters = dict[str, tuple[str, int]]


def _cipher(key: bytes, data: bytes, *, encrypt: bool) -> bytes:
    cipher = Cipher(algorithms.AES(key), modes.CBC(bytes(16)))
    side = cipher.encryptor() if encrypt else cipher.decryptor()
    return side.update(data) + side.finalize()


def _hex(data: bytes) -> str:
    return data.hex().upper()


@dataclass(slots=True)
class Proof:
    """Of a password that is never sent: both sides derive a key from it."""

    password: str
    _salt: bytes = field(default_factory=lambda: os.urandom(16))
    _key_salt: bytes = field(default_factory=lambda: os.urandom(16))
    _secret: bytes = field(default_factory=lambda: os.urandom(32))
    _key: bytes = b""

    def _verifier(self) -> bytes:
        salt = self._salt + b"AUTH_PBKDF2_SPEEDY_KEY"
        password = self.password.encode()
        speedy = hashlib.pbkdf2_hmac("sha512", password, salt, _ROUNDS, 64)
        return hashlib.sha512(speedy + self._salt).digest()[:32]

    def challenge(self) -> Parameters:
        secret = _cipher(self._verifier(), self._secret, encrypt=True)
        return {
            "AUTH_SESSKEY": (_hex(secret), 1),
            "AUTH_VFR_DATA": (_hex(self._salt), _VERIFIER_12C),
            "AUTH_PBKDF2_CSK_SALT": (_hex(self._key_salt), 0),
            "AUTH_PBKDF2_VGEN_COUNT": (str(_ROUNDS), 0),
            "AUTH_PBKDF2_SDER_COUNT": (str(_KEY_ROUNDS), 0),
        }

    def holds(self, answer: dict[str, str]) -> bool:
        """Whether the client's answer was made with the password."""
        theirs = bytes.fromhex(answer["AUTH_SESSKEY"])
        secret = _cipher(self._verifier(), theirs, encrypt=False)
        both = _hex(secret[:32] + self._secret).encode()
        self._key = hashlib.pbkdf2_hmac("sha512", both, self._key_salt, _KEY_ROUNDS, 32)
        sent = bytes.fromhex(answer["AUTH_PASSWORD"])
        clear = _cipher(self._key, sent, encrypt=False)
        return hmac.compare_digest(clear[16 : -clear[-1]], self.password.encode())

    def answer(self) -> str:
        """That the server knows the password as well."""
        text = os.urandom(16) + b"SERVER_TO_CLIENT"
        return _hex(_cipher(self._key, text, encrypt=True))


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    values: dict[str, str]


def read_protocol(reader: Reader) -> None:
    """The client's versions and its name."""
    reader.skip(1)
    reader.zeros()
    reader.zeros()


def read_types(reader: Reader) -> None:
    """The representations the client takes."""
    reader.skip(6)
    reader.value()
    reader.value()
    while reader.two():
        reader.skip(6)


def read_login(reader: Reader, fields: int) -> Login:
    reader.skip(3)
    if fields >= 18:
        reader.number()
    named = reader.byte()
    reader.numbers(2)
    reader.byte()
    count = reader.number()
    reader.skip(2)
    user = (reader.value() or b"").decode() if named else ""
    values: dict[str, str] = {}
    for _ in range(count):
        name = reader.text()
        values[name] = reader.text()
        reader.number()
    return Login(user, values)


def read_fast_login(reader: Reader) -> Login:
    """All three in one message, of 23ai and later."""
    reader.skip(4)
    read_protocol(reader)
    reader.skip(6)
    read_types(reader)
    return read_login(reader, 13)


def protocol(fields: int) -> bytes:
    """The server's versions."""
    compile_time = bytearray(55)
    compile_time[4], compile_time[7] = 0xEA, fields
    run_time = bytearray(13)
    run_time[0], run_time[6] = 2, 4
    characters = bytes(9) + (2000).to_bytes(2, "big") + b"\0\0"  # AL16UTF16
    writer = Writer().octets(1, 6, 0).raw(b"x86_64/Linux 2.4.xx\0")
    writer.raw((873).to_bytes(2, "little")).octets(1, 0, 0)  # AL32UTF8
    writer.raw(len(characters).to_bytes(2, "big")).raw(characters)
    return writer.value(bytes(compile_time)).value(bytes(run_time)).done()


TYPES = b"\x02\0\0"
