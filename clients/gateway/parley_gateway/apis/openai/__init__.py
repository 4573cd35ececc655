"""OpenAI's REST API for single stages: recognition, language model and speech."""
