"""Recording every training of an environment, without an edit and without a launcher of ours."""
