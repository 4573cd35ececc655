"""Telephone calls over Twilio's Media Streams."""
