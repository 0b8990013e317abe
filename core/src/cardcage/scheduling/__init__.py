"""Who runs when and where: queue, pool, plan and placement.

`plan` and `placement` are pure decisions; `queue` and `pool` carry them out in the event loop.
"""
