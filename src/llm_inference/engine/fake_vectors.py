"""The fake engine's vectors: numbers in [-1, 1) from a hash of the tokens. Equal inputs have equal vectors."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from hashlib import blake2b

#: Numbers in a whole vector.
SIZE = 16


def vector_of(token_ids: Sequence[int], pooling: str, dimensions: int | None, normalize: bool) -> bytes:
    """Little-endian float32. Another pooling makes another vector, fewer dimensions a beginning of the same."""
    key = f"{pooling}:{','.join(map(str, token_ids))}".encode()
    words = struct.unpack(f"<{SIZE}h", blake2b(key, digest_size=2 * SIZE).digest())
    values = [word / 32768 for word in words][:dimensions]
    length = math.hypot(*values) if normalize else 1.0
    return struct.pack(f"<{len(values)}f", *(value / (length or 1.0) for value in values))
