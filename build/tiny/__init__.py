"""The tiny models of the cpu profile: their domain, their data and their training."""
