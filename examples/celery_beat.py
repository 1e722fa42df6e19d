"""Celery beat: a nightly report that is sent once, however many beats there are.

    celery -A celery_beat beat
    celery -A celery_beat worker

Start both several times, also on several machines with one ``LOCKS_URL``: each beat
sends its own message, a message may be delivered twice, and one worker sends the report
of a night. ``EVERY`` is for a try: the seconds between two messages of each beat.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery
from celery.schedules import crontab

from aiorwlock_remote.sync import connect

NIGHT = 86400.0

app = Celery("reports", broker=os.environ.get("BROKER", "redis://localhost/1"))
app.conf.broker_transport_options = {
    name: os.environ["QUEUES"]
    for name in ("data_folder_in", "data_folder_out")
    if "QUEUES" in os.environ
}
every = os.environ.get("EVERY")
app.conf.beat_schedule = {
    "report": {
        "task": "celery_beat.report",
        "schedule": float(every) if every else crontab(hour=3, minute=0),
    }
}
locks = connect(os.environ.get("LOCKS_URL", "sqlite:///locks.db"))
once = locks.once("report", period=NIGHT)
sent = Path(os.environ.get("SENT", "sent.txt"))


def note(text: str) -> None:
    """Add a line to the file that a reader of this example looks at."""
    with sent.open("a") as file:
        file.write(f"{text}\n")


@app.task(name="celery_beat.report")  # type: ignore[untyped-decorator]
def report() -> None:
    """Send the report, unless it was sent this night."""
    if not once.run(lambda: note("sent")):
        note("sent before")
