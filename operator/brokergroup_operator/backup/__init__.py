"""What a pod does that copies the store of a stopped broker to a backup, or a backup to a new store."""
