"""Calls that are written down as a whole, and played again without a server.

What the agent does in a call follows from its settings, the client's messages, the answers of models and
tools, chance, and the order and times in which its event loop has called it. All of that is written into
one file (:mod:`parley.replay.call_log`) by :mod:`parley.replay.recording`, and given to the agent's own code
again by :mod:`parley.replay.playing`.
"""
