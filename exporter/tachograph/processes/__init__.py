"""Processes of ours and of others: how they start and end, whom they outlive, when they try again."""
