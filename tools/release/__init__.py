"""The release: whether the checkout may be released, its artefacts, built twice and compared, and its tag."""
