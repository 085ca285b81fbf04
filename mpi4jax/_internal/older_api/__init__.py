"""The API of older versions: tokens, `auto_tokenize`, and names with capitals."""
