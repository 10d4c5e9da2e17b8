"""Encodings of numbers: convert texts to tokens and back, independently of any model.

digits                  each digit is a token, or the tokenizer is used unchanged
regression_transformer  each digit is a token that also encodes its place
number_values           each number is one [NUM] token and a value (xVal)
"""
