#!/usr/bin/env python3
"""Writes keys.txt: keys of pairings by other programs than libsodium, for tests/unit/test_pair_keys.c.

    python3 -m venv venv && venv/bin/pip install argon2-cffi cryptography && venv/bin/python tests/golden/pair/make_keys.py

argon2-cffi has the reference implementation of Argon2, cryptography has OpenSSL's X25519. A line: words with hyphens, then in hexadecimal
salt, main's public and secret key, the joiner's public and secret key."""
import hashlib
from pathlib import Path

from argon2.low_level import Type, hash_secret_raw
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

CASES = (("cherish limerick diverge market agog civilian", bytes(range(16))),
         ("cherish limerick diverge market agog civilian", bytes(range(1, 17))),
         ("zebra abacus yacht zodiac jumbo above", hashlib.sha256(b"salt").digest()[:16]))


def pair(seed: bytes) -> tuple[bytes, bytes]:
    secret = hashlib.sha512(seed).digest()[:32]
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw(), secret


def main() -> None:
    lines = []
    for words, salt in CASES:
        seeds = hash_secret_raw(words.encode(), salt, time_cost=3, memory_cost=64 << 10, parallelism=1, hash_len=64, type=Type.ID)
        keys = (*pair(seeds[:32]), *pair(seeds[32:]))
        lines.append(" ".join((words.replace(" ", "-"), salt.hex(), *(k.hex() for k in keys))) + "\n")
    (Path(__file__).parent / "keys.txt").write_text("".join(lines))


main()
