"""Settings: what the locks need, and the least that Django needs."""

import os

AIORWLOCK_REMOTE = {  # arguments of aiorwlock_remote.connect
    "store": os.environ.get("LOCKS_URL", "sqlite:///locks.db"),
    "lease": 20,
}
MIDDLEWARE = ["aiorwlock_remote.integrations.django.views.LockErrorMiddleware"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP", "shop.sqlite3"),
        "ATOMIC_REQUESTS": True,
    }
}
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
SECRET_KEY = os.environ.get("SECRET_KEY", "for this example")
