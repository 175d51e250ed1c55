r"""One replica: an OpenAI-compatible server for one model, in three processes.

``python -m dataplane.worker --model DIR --port N`` runs alone; without ``--model`` it waits warm for the fleet.

::

    client --HTTP--> server (asyncio) --frames--> engine process (torch, one step after the other)
                        |  \--frames--> tokenizer child (sandboxed; may die of a hostile tokenizer)
                        |--fsync--> usage spool        fleet --control socket--> server

Nothing here shares the engine's interpreter: a slow client, a long chat template or a flood of connections cannot delay
a step by holding its lock.
"""
