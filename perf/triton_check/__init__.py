"""What a Triton does of itself, and whether it does what Parley relies on."""
