"""What the broker does about its disks: it watches them, drops failed ones, moves logs, and compacts them."""
