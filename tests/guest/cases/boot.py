# Guests that must not boot, or not like that.
# limit: 120
# kernel: both
import re

from harness import Failure

# A key that is malformed or unknown stops the boot with one clear line and a power-off.
BAD_KEYS = ("berth.port=0", "berth.port=x", "berth.auth=maybe", "berth.unknown=1", "berth.secret=00")


def own_bad_key_powers_off(boot):
    for key in BAD_KEYS:
        with boot("--append", key) as guest:
            if not guest.wait_powered_off(100):
                raise Failure(f"{key}: the guest still runs")
            name = key.split("=")[0]
            if not re.search(re.escape(name), guest.console()):
                raise Failure(f"{key}: the console does not name it")


def own_secret_by_fw_cfg(boot):
    _secret_arrives(boot, "fw_cfg")


def own_secret_by_smbios(boot):
    _secret_arrives(boot, "smbios")


def _secret_arrives(boot, way):
    with boot("--secret-by", way, "--append", "berth.log=info") as guest:
        guest.wait_ready()
        line = next((line for line in guest.console().splitlines() if "boot.secret" in line), "")
        if way.replace("_", "") not in line.lower().replace("_", ""):
            raise Failure(f"the keeper did not take the secret from {way}: {line!r}")
