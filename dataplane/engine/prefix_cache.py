"""The prefix cache: a full block is found again by the digest of everything up to and including it.

The chain starts from a secret of the tenant and the version, so two tenants never share a block, and a digest tells
nothing about another tenant's tokens; and from an epoch, so that a tenant can begin anew. (The method is vLLM's
automatic prefix caching with a keyed seed.)
"""

import hashlib
import hmac
from array import array

from dataplane.engine.block_list import Block
from dataplane.engine.block_pool import BlockPool
from dataplane.engine.lost_hits import LostHits
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.tenant_queue import TenantQueue

_DIGEST_BYTES = 32


def chain_seed(salt_secret: bytes, tenant_id: str, version_digest: str, epoch: int) -> bytes:
    """Return the first link of a tenant's chains: an HMAC over tagged, length-prefixed parts, so none can run over."""
    message = bytearray()
    for tag, value in ((b"tenant", tenant_id), (b"version", version_digest), (b"epoch", str(epoch))):
        raw = value.encode("utf-8", "surrogatepass")
        message += tag + len(raw).to_bytes(8, "big") + raw
    return hmac.digest(salt_secret, bytes(message), hashlib.sha256)


class PrefixCache:
    """Finds and indexes the full blocks of sequences.

    Args:
        pool: holds the blocks and the index.
        block_size: tokens in a block.
        salt_secret: secret of this deployment; never leaves the engine.
        version_digest: content address of the weights: another version computes other KV.
        enabled: False never finds nor indexes anything.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, salt_secret: bytes, version_digest: str, *, enabled: bool
    ) -> None:
        self.enabled = enabled
        self._pool = pool
        self._block_size = block_size
        self._salt_secret = salt_secret
        self._version_digest = version_digest
        self._lost_hits = LostHits(len(pool.blocks), block_size, salt_secret)

    def match(self, sequence: Sequence) -> list[Block]:
        """Return the indexed blocks that hold the longest prefix of ``sequence``, first position first.

        At least one token is left to compute: its logits are needed. Where those of the whole prompt are, nothing is
        found. Token ids are compared too, so that even a collision of digests could not serve a wrong prefix.
        """
        hits: list[Block] = []
        if not self.enabled or sequence.is_private or sequence.needs_scores:
            return hits
        size = self._block_size
        self._extend_chain(sequence, (sequence.num_tokens - 1) // size)
        for position, digest in enumerate(sequence.chain[: (sequence.num_tokens - 1) // size]):
            block = self._pool.index.get(digest)
            if (
                block is None
                or block.owner is not sequence.tenant.budget
                or block.token_ids != sequence.token_ids[position * size : (position + 1) * size]
            ):
                break
            hits.append(block)
        return hits

    def lost_tokens(self, sequence: Sequence) -> int:
        """Return what was not found for ``sequence``, which is just admitted, because tenants have caches apart."""
        if not self.enabled or sequence.is_private or sequence.needs_scores:
            return 0
        return self._lost_hits.count(sequence.tenant.id, sequence.token_ids, sequence.prefix_tokens)

    def register(self, sequence: Sequence, start_tokens: int) -> bool:
        """Index the blocks of ``sequence`` that became full since ``start_tokens`` were computed; False if none did."""
        size = self._block_size
        first, last = start_tokens // size, sequence.num_computed_tokens // size
        if not self.enabled or sequence.is_private or first == last:
            return False
        self._extend_chain(sequence, last)
        for position in range(first, last):
            block = sequence.table.blocks[position]
            if block.digest is None:
                token_ids = sequence.token_ids[position * size : (position + 1) * size]
                self._pool.register(block, sequence.chain[position], token_ids)
        return True

    def begin_epoch(self, tenant: TenantQueue, epoch: int) -> None:
        """Forget what ``tenant`` has cached, and seed its chains with ``epoch`` from now on.

        What runs goes on with its blocks, which are nobody else's to find any more: neither those that it has nor those
        that it will fill. What waits begins anew.
        """
        running = tenant.running.values()
        self._pool.forget(tenant.budget, [block for sequence in running for block in sequence.table.blocks])
        tenant.budget.cache_epoch = epoch
        for sequence in running:
            sequence.is_private = True
        for sequence in tenant.queued():
            sequence.chain.clear()

    def _extend_chain(self, sequence: Sequence, num_blocks: int) -> None:
        chain, size = sequence.chain, self._block_size
        while len(chain) < num_blocks:
            start = len(chain) * size
            parent = chain[-1] if chain else self._seed(sequence.tenant.budget)
            tokens = array("q", sequence.token_ids[start : start + size]).tobytes()
            chain.append(hashlib.blake2b(parent + tokens, digest_size=_DIGEST_BYTES).digest())

    def _seed(self, owner: TenantBudget) -> bytes:
        return chain_seed(self._salt_secret, owner.id, self._version_digest, owner.cache_epoch)
