"""Sessions that another gateway can take over: encrypted, in Redis, and short-lived."""
