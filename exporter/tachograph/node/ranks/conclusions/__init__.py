"""The conclusions of a node about its part of each run: a module for each subject, few series whatever the ranks."""
