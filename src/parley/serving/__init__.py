"""What every ``model.py`` shares: parameters, weights, tensors and calls to other models."""
