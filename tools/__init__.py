"""What maintainers run: generators of documents, mutation of rules, fetching of Prometheus."""
