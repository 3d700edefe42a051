"""A run whose ranks are in pods: the supervisor is outside of them, and makes their job anew for each attempt."""
