"""The box of a rank: what it was doing when it stood still, failed or was asked. Imported when one is due."""
