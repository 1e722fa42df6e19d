"""``rwlock bench``: what locks cost at one's own store, from here."""
