"""CUDA graphs and number formats of networks on PyTorch."""
