"""Speech recognition: front end, transducer decoding, transcripts."""
