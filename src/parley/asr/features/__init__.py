"""Audio into what the encoders hear: NeMo's log-mel front end."""
