"""GPT-2's alphabet: one printable character for each byte, in which the vocabularies of byte-level BPE are written."""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _alphabet()
ALPHABET = frozenset(BYTE_OF)


def token_bytes(text: str) -> bytes:
    """Bytes of a token; a character outside of the alphabet stands for itself."""
    return b"".join(bytes([BYTE_OF[char]]) if char in BYTE_OF else char.encode() for char in text)
