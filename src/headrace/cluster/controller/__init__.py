"""The controller, which elects leaders. `machine` decides; `office` writes, and sends commands to the brokers."""
