"""The roof: one module for each folder of ``model_repository``, which its ``model.py`` runs."""
