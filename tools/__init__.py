"""Programs for maintainers: generators of documents, mutation of rules, fetching of Prometheus."""
