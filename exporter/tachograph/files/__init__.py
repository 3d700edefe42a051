"""Files: written whole or not at all, read with a fault that names its line, shipped with the package."""
