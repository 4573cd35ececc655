"""What models need besides Triton: settings, weights, ONNX Runtime, batches, admission."""
