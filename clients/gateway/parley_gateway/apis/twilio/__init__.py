"""Telephone calls, by Twilio's Media Streams."""
