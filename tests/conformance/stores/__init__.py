"""Our own backends, as the conformance suite gets at them."""
