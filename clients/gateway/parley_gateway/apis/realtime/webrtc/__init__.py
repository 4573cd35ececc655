"""OpenAI's Realtime protocol over WebRTC: audio as media, events over a data channel."""
