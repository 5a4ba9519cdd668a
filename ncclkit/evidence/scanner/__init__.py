"""From bytes to the few lines that matter: a streaming scan of bounded memory."""
