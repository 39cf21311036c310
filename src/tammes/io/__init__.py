"""Files, downloads, the disk cache, the hub, and what is known of the machine."""
