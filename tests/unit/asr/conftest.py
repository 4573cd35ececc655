from clip_fixtures import clips, export, models, spoken

__all__ = ["clips", "export", "models", "spoken"]
