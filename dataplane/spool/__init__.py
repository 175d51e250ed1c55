"""The usage spool of replicas and gateways: fsync'd segment files on disk, and the shipper that empties them.

Layout, under one root that every process of a node shares::

    <root>/<owner>.<random>/lock           held (flock) by the writer while it lives; names the writing process
    <root>/<owner>.<random>/00000000.seg   frames: length, CRC32, MessagePack of one UsageRecord
    <root>/damaged/                        segments with bytes that no crash explains, kept for a person
    <root>/rejected.seg                    records the control plane refuses for good, kept for a person

A record is durable before its writer is told so, and a segment goes only after the control plane has acknowledged all
of it. Delivery is at least once; the receiver is idempotent per record, so it counts once.
"""
