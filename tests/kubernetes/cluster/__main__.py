"""``python -m tests.kubernetes.cluster programs|up|down|status``."""

import sys

from tests.kubernetes.cluster import build, lifecycle
from tests.kubernetes.cluster.say import say

from orchard.core.errors import MachineUnfit

_USAGE = "python -m tests.kubernetes.cluster programs|up|down|status"


def _main(words: list[str]) -> int:
    try:
        match words:
            case ["programs"]:
                build.service_monitor()
                sys.stdout.write(f"{build.programs()}\n")
            case ["up"]:
                sys.stdout.write(f"export KUBECONFIG={lifecycle.up()}\n")
            case ["down"]:
                lifecycle.down()
            case ["status"]:
                sys.stdout.write(f"{lifecycle.status()}\n")
            case _:
                say(_USAGE)
                return 2
    except (MachineUnfit, TimeoutError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
