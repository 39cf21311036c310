"""Files, downloads, the disk cache, the hub, and the machine."""
