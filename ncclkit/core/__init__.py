"""Records, the case folder, text, and arithmetic on plain values; nothing here reads logs or starts anything."""
