"""The training processes of this node: their socket, frames, states and series."""
