"""The lab: reproduce, compare and extend the number token loss paper."""
