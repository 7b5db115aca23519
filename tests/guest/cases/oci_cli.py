# berthctl's OCI command line under another init, where `berth --helper &` is all that was started.
# limit: 480
import re

from harness import Failure
from host import expect


def own_under_a_helper(boot):
    with boot("--append", "rdinit=/tests/data/other-init", "--mem", "768M") as guest:
        guest.wait_ready()
        # The shells of the cases are killed with their sessions: the helper gets one of its own.
        guest.check(". /tests/lib.sh\nsetsid /init --helper >/run/helper.log 2>&1 &\n"
                    "wait_for 40 test -S /run/berth/berth.sock || fail \"$(tail -n 3 /run/helper.log)\"")
        names = re.findall(r"^(case_\w+)\(\)", guest.check("cat /tests/cases/oci_cli.sh"), re.M)
        expect(len(names) >= 15, f"only {names}")
        wrong = []
        for name in names:
            done = guest.sh(f". /tests/lib.sh\n. /tests/cases/oci_cli.sh\n{name}", 120)
            if done.status != 0:
                wrong.append(f"{name}: {done!r}")
        if wrong:
            raise Failure(f"{len(wrong)} of {len(names)}: " + " | ".join(wrong))
