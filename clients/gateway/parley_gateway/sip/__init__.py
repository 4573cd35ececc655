"""Telephone calls by SIP, without a provider's API: a process of its own, ``parley gateway sip``."""
