"""Corpora of free texts that `skippipe data fetch` fetches; the rest of `data` knows nothing of them."""
