"""How the options of the fragments are called in kernels that are newer than 6.1, for initramfs/kernel --source."""

import os
import re

# Renamed since: the same question under another name. (None: the new one is asked the other way round.)
SUCCESSORS = {
    "CONFIG_PAGE_TABLE_ISOLATION": ("CONFIG_MITIGATION_PAGE_TABLE_ISOLATION", "y"),
    "CONFIG_RETPOLINE": ("CONFIG_MITIGATION_RETPOLINE", "y"),
    "CONFIG_RETHUNK": ("CONFIG_MITIGATION_RETHUNK", "y"),
    "CONFIG_CPU_UNRET_ENTRY": ("CONFIG_MITIGATION_UNRET_ENTRY", "y"),
    "CONFIG_CPU_IBPB_ENTRY": ("CONFIG_MITIGATION_IBPB_ENTRY", "y"),
    "CONFIG_CPU_IBRS_ENTRY": ("CONFIG_MITIGATION_IBRS_ENTRY", "y"),
    "CONFIG_BASE_FULL": ("CONFIG_BASE_SMALL", None),
}
# No longer options: the kernel does as they asked, and its command line has the last word.
ALWAYS_SO = ("CONFIG_RANDOM_TRUST_CPU", "CONFIG_RANDOM_TRUST_BOOTLOADER")
# Came later, are on in tinyconfig, and take away what the fragments ask for.
TO_LEAVE_OUT = ("CONFIG_SLUB_TINY",)


def symbols(tree):
    """What the Kconfig files of a source tree define: {name: whether a person may choose}."""
    found = {}
    for folder, _, files in os.walk(tree):
        for name in files:
            if name.startswith("Kconfig"):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as source:
                    found = merged(found, symbols_in(source.read()))
    return found


def merged(one, other):
    for name, is_choice in other.items():
        one[name] = one.get(name, False) or is_choice
    return one


def symbols_in(text):
    found = {}
    for name, body in re.findall(r"^(?:menu)?config (\w+)\n((?:[ \t].*\n|\n)*)", text + "\n", re.MULTILINE):
        has_prompt = re.search(r'^\s+(?:(?:def_)?(?:bool|tristate|string|int|hex)|prompt)\s+["\']', body, re.MULTILINE) is not None
        found = merged(found, {"CONFIG_" + name: has_prompt})
    return found


def adapted(wanted, known):
    """`wanted` ({option: value or None for "is not set"}) in the words of a tree that has the `known` symbols. What the
    tree lacks without a word of ours stays as it is: it is named when it does not hold."""
    result = {}
    for name, value in wanted.items():
        successor, same = SUCCESSORS.get(name, (None, None))
        if name in known and known[name]:
            result[name] = value
        elif successor in known:
            result[successor] = value if same else (None if value == "y" else "y")
        elif name in ALWAYS_SO and name not in known:
            continue
        elif value is None and name in known:
            continue  # nobody is asked any more: it follows from other options
        else:
            result[name] = value
    for name in TO_LEAVE_OUT:
        if name in known and name not in wanted:
            result[name] = None
    return result
