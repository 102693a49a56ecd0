"""The tests of `tests/clients` against Kafka and Headrace in one cluster, bootstrapped from either side."""
