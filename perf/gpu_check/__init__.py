"""The checks of the gpu profile, section by section."""
