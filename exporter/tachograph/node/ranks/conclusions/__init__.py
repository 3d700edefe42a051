"""What a node concludes about its part of each run: a module for each subject, and few series whatever the ranks."""
