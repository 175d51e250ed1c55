"""The fleet of one node: keeps what runs equal to what the catalog wants.

``placement`` decides (pure), ``replica`` lives one life, ``fleet`` joins the two, ``backends`` start processes.
"""
