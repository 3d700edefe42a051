"""The node's network ports: what they read, and what the node concludes of them by itself."""
