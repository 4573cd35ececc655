"""Names of the files in a folder of an encoder, as the library sentence-transformers writes it."""

CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE = "config.json", "model.safetensors", "tokenizer.json"
LIMITS_FILE, POOLING_FILE = "sentence_bert_config.json", "1_Pooling/config.json"
FILES = (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE, LIMITS_FILE, POOLING_FILE)
