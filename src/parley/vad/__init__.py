"""Who is speaking when: speech probabilities, and what they mean."""
