"""Text, tokens and numbers to verdicts; pure."""
