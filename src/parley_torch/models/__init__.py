"""Models of the repository: what ``1/model.py`` of each folder runs."""
