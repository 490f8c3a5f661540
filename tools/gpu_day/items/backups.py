"""Where a level-1 sleep keeps the weights: the same tokens after two sleeps for each value of --backup."""
import events
import server
from items import served

BACKUPS = ("retain", "release", "file", "compress")
PROMPT = [(29 * i + 7) % 400 for i in range(12)]


def run(kit):
    model, flags = kit.served("qwen3-0.6b")
    for backup in BACKUPS:
        more = (f"--backup={backup}", *((f"--spill-dir={kit.scratch}",) if backup == "file" else ()))
        with server.Server(kit, model, *flags, *more, log=f"backups.{backup}") as one:
            wanted = one.complete(PROMPT, kit.pick(16, 3))["token_ids"]
            for sleep in ("first", "second"):
                asleep = one.admin("/sleep?level=1")
                left = one.resident_bytes()
                woke = one.admin("/wake_up")
                found = one.complete(PROMPT, len(wanted))["token_ids"]
                events.row(name=f"{backup}, {sleep}", sleep_s=round(asleep["seconds"], 3), wake_s=round(woke["seconds"], 3),
                           freed_bytes=served.total_freed(asleep), resident_bytes_asleep=left, same_tokens=found == wanted)
                if found != wanted:
                    raise events.Failed(f"--backup={backup}: {found} after the {sleep} sleep instead of {wanted}")
                if left:
                    raise events.Failed(f"--backup={backup}: {left} bytes are resident while it sleeps")
