"""The exceptions that reading an answer or a file of an unexpected form may raise."""

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Of JSON that is taken apart field by field; OSError is not among them."""
