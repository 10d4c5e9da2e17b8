"""How numbers in texts become tokens, and tokens become texts again; nothing here knows of models.

digits                  each digit a token, or a tokenizer as it is
regression_transformer  each digit a token that knows its place
xval                    each number one [NUM] token and a value
"""
