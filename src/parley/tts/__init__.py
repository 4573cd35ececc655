"""Speech synthesis: speakable segments and voices."""
