"""What talks to Triton: calls to other models, requests, responses, logs."""
