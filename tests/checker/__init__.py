"""Run transactions under faults and check the histories recorded by the clients."""
