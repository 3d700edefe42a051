"""`tachograph run`: a training script recorded without an edit, as far as it can be seen from outside."""
