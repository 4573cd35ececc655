"""What the language model of profile open is trained on (``build/training/train_qwen_voice.py``)."""
