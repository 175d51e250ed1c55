"""One replica on several processes: the engine's own is rank 0, the others are its children.

``sharding`` cuts a program and its weights for a rank, ``stage`` computes a rank's part of a step, ``group`` is what
goes between ranks, ``ranks`` starts and leads the children, ``rank_process`` is one.
"""
