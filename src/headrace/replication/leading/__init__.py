"""What a broker does for the partitions that it leads with followers: in-sync replicas, high watermark, throttle."""
