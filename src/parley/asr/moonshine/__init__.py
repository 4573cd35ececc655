"""Recognition by Moonshine: audio in, text with case and punctuation out, without times of words."""
