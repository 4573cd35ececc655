"""What the language model of profile ``open`` is measured with."""
