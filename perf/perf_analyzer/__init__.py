"""Inputs, runs and figures of Triton's perf_analyzer for the models of this repository."""
