"""Calls that are written down as a whole, and played again without a server.

What the agent does in a call follows from its settings, the client's messages, the answers of models and
tools, chance, and the order and times in which its event loop has called it. :mod:`.recording` writes all of
that into one file (:mod:`.call_log`); :mod:`.playing` gives it to the agent's own code again.
"""
