"""Parley: the logic of a voice agent that runs inside a Triton model repository.

Nothing in this package imports Triton: the ``model.py`` files under ``model_repository/``
hand Triton's objects to it.
"""
