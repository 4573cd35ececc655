"""Requests that show whether a model answers: Triton's own health endpoints say nothing about it.

After a model's process has died, Triton 24.10 still reports the model as ready, and requests to it hang. A
canary is a request that costs almost nothing, goes through the model's own code, and has an answer of which
it is known what it has to be. It leaves nothing behind: a sequence that it begins is ended.

A model whose every place is taken refuses further work by an answer of its own. That is an answer: the model
is healthy, and full. The agent holds a canary's session beside those of its users, so that it answers in full
even then.
"""
