# What the agent says of the guest's kernel beside what the kernel itself says, and its config.
# kernel: both
# limit: 120
import json
import os
import re
import subprocess

from harness import Failure, Skip

# What a fresh cgroup in the sandbox has, which file systems there are, and which of the named paths exist.
LOOK = """
mkdir /sys/fs/cgroup/berth/look
for file in /sys/fs/cgroup/berth/look/*; do echo "cgroup ${file##*/}"; done
rmdir /sys/fs/cgroup/berth/look
while read -r line; do echo "fs ${line##*[!a-z0-9_]}"; done </proc/filesystems
for path in %s; do [ -e "$path" ] && echo "path $path"; done
uname -r | sed 's/^/release /'
"""


def info(guest):
    return json.loads(guest.check("berthctl --json info"))


def features(guest):
    return {feature["name"]: feature for feature in info(guest)["features"]}


def subject(feature):
    """The file, file system or path that the feature was looked for by."""
    detail = feature.get("detail", "")
    if detail.endswith("in /proc/filesystems"):
        return "fs " + feature["name"].split(".", 1)[1]
    word = detail.split(":")[0]
    if word.startswith("/"):
        return "path " + word
    return "cgroup " + word if feature["name"].startswith("cgroup.") else None


def case_info_says_what_the_kernel_says(guest):
    said = features(guest)
    wanted = {name: subject(feature) for name, feature in said.items()}
    paths = [word[5:] for word in wanted.values() if word and word.startswith("path ")]
    seen = set(guest.check(LOOK % " ".join(paths)).splitlines())
    compared = {"cgroup": 0, "fs": 0, "path": 0}
    for name, word in wanted.items():
        if word is None or name.startswith("lsm."):
            continue
        compared[word.split()[0]] += 1
        kind, *subjects = word.split()  # of several paths one will do
        there = any(f"{kind} {one}" in seen for one in subjects)
        if said[name]["available"] != there:
            raise Failure(f"{name}: Info says {said[name]['available']}, the kernel {there} ({word})")
        if said[name]["available"] == bool(said[name].get("refused")):
            raise Failure(f"{name}: what is refused without it goes with what is missing: {said[name]}")
    if compared["cgroup"] < 15 or compared["fs"] < 6 or compared["path"] < 15:
        raise Failure(f"only {compared} could be compared")
    release = next(line for line in seen if line.startswith("release "))
    if info(guest)["kernelRelease"] != release[8:]:
        raise Failure(f"Info says {info(guest)['kernelRelease']}, the kernel {release}")


def case_missing_features_are_refused(guest):
    """uclamp is what Debian's kernel lacks: Info and a request agree."""
    available = features(guest)["cgroup.cpu.uclamp"]["available"]
    has_keys = {"cpu.uclamp.min", "cpu.uclamp.max"} <= set(info(guest)["unifiedKeys"])
    if has_keys != available:
        raise Failure(f"cgroup.cpu.uclamp is {available}, the keys are {has_keys}")


def case_config_check_agrees(guest):
    """The config tells beforehand what the guest finds by trying."""
    config = os.path.join(guest.kernel_folder, "config")
    if not os.path.exists(config):
        raise Skip("this kernel came without its config")
    done = subprocess.run([guest.agent, "--check-kernel", config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        raise Failure(f"--check-kernel: status {done.returncode}: {done.stdout}")
    verdicts = {match[2]: match[1] for match in re.finditer(r"^(missing|module|REQUIRED) +(\S+) ", done.stdout, re.M)}
    for name, feature in features(guest).items():
        if name.startswith("lsm.") or name in ("create.options", "exec.options"):  # the command line chooses among LSMs
            continue
        verdict = verdicts.get(name, "built in")
        # A module may be in the image or not.
        if verdict != "module" and feature["available"] != (verdict == "built in"):
            raise Failure(f"{name}: {verdict} by the config, available in the guest: {feature['available']}")
    modules = guest.check("cat /proc/modules 2>/dev/null; true")
    if ("module" in verdicts.values()) != bool(modules):
        raise Failure(f"modules by the config: {verdicts}; in the guest: {modules!r}")


def case_modules_are_loaded_by_the_keeper(guest):
    listed = guest.check("cat /lib/modules/berth.modules 2>/dev/null; true").split()
    loaded = guest.check("cut -d' ' -f1 /proc/modules 2>/dev/null; true").split()
    names = {os.path.basename(path)[:-3].replace("-", "_") for path in listed}
    # fw_cfg is unloaded again, with the secret in it.
    missing = names - set(loaded) - {"qemu_fw_cfg", "dmi_sysfs"}
    if len(missing) > len(names) / 4:
        raise Failure(f"not loaded: {sorted(missing)} of {sorted(names)}")
    if not listed and loaded:
        raise Failure(f"loaded though the image has none: {loaded}")
    if guest.check("cat /proc/sys/kernel/modprobe 2>/dev/null; true").strip():
        raise Failure("the kernel has a modprobe to call")


def own_boot_is_traced(boot):
    with boot("--append", "berth.log=debug") as guest:
        guest.wait_ready()
        steps = re.findall(r"boot\.step.*?: (.*) took (\d+) us, done (\d+) us", guest.console())
        if len(steps) < 8:
            raise Failure(f"only {len(steps)} steps are told: {steps}")
        ends = [int(end) for _, _, end in steps]
        if ends != sorted(ends) or any(int(took) > end for (_, took, _), end in zip(steps, ends)):
            raise Failure(f"the steps' times do not add up: {steps}")
