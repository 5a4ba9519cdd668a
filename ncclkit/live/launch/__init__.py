"""Launchers: start ranks with the engines that exist, read their records, leave nothing behind."""
