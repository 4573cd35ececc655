"""What recognisers do with the requests of streams."""
