"""What the language model of profile open is trained on (``build/train_qwen_voice.py``)."""
