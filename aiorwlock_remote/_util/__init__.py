"""What every layer may use: answers on their way, threads, ids, files of statements."""
