"""What caches that are apart cost: prompt tokens that one cache for all tenants would have found, and theirs did not.

The figure follows from what other tenants sent. So it is one for all of them together, for those who run the platform.
"""

import hashlib
from array import array
from collections import OrderedDict

_DIGEST_BYTES = 16
_SEVERAL = ""
"""Stands for an owner where there are several; no tenant has it as its id."""


class LostHits:
    """Remembers whose prompts began how, as many blocks as the pool has: what one cache would hold at most.

    Digests are of their own chain, keyed by the deployment's secret; no block is found by them.

    Args:
        capacity_blocks: how many blocks are remembered, the latest.
        block_size: tokens in a block.
        secret: keys the digests.
    """

    def __init__(self, capacity_blocks: int, block_size: int, secret: bytes) -> None:
        self._capacity_blocks = capacity_blocks
        self._block_size = block_size
        self._seed = hashlib.blake2b(b"lost hits", key=secret[: hashlib.blake2b.MAX_KEY_SIZE]).digest()
        self._owners: OrderedDict[bytes, str] = OrderedDict()

    def count(self, tenant_id: str, token_ids: list[int], hit_tokens: int) -> int:
        """Note a prompt; return how many of its tokens another tenant's has computed beyond its own ``hit_tokens``."""
        size, parent, lost_tokens, is_known = self._block_size, self._seed, 0, True
        chain: list[bytes] = []
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            tokens = array("q", token_ids[start : start + size]).tobytes()
            parent = hashlib.blake2b(parent + tokens, digest_size=_DIGEST_BYTES).digest()
            chain.append(parent)
            owner = self._owners.get(parent)
            is_known = is_known and owner is not None
            if is_known and owner != tenant_id and start >= hit_tokens:
                lost_tokens += size
            self._owners[parent] = tenant_id if owner in (None, tenant_id) else _SEVERAL
        for digest in reversed(chain):  # the end of a prompt goes first, as in a cache
            self._owners.move_to_end(digest)
        while len(self._owners) > self._capacity_blocks:
            self._owners.popitem(last=False)
        return lost_tokens
