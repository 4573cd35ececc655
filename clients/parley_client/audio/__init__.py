"""Audio files, the loudspeaker's clock, the paced microphone and the recording of a call."""
