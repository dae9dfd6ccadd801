"""Signs of a garbled text, one family a file; each is a function of the text and its prompt."""
