"""NeMo transducers to the files that the models load; see ``build/export_nemo.py``."""
