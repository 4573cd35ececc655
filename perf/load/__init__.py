"""Load from many callers: what one call is made of, and what a run of locust has measured."""
