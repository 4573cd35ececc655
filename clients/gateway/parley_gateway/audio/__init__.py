"""The forms of audio that clients send and want."""
