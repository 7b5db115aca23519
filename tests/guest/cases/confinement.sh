# suite: crash
# What the kernel says about the agent's own confinement (/proc/PID/status), and that nobody inherits it.

# status_of NAME FIELD: of the process that was started by that name.
status_of() {
    for dir in /proc/[0-9]*; do
        [ "$(tr '\0' '\n' <"$dir/cmdline" 2>/dev/null | head -n 1)" = "$1" ] || continue
        awk -v field="$2:" '$1 == field {print $2}' "$dir/status"
        return
    done
    fail "no process $1"
}

case_the_agent_is_confined() {
    expect_eq "the agent's seccomp mode (2: filter)" "$(status_of berth-agent Seccomp)" 2
    expect_eq "its no_new_privs" "$(status_of berth-agent NoNewPrivs)" 1
    # DAC_OVERRIDE, FOWNER, KILL, NET_ADMIN, SYS_PTRACE, SYS_ADMIN, SYS_RESOURCE
    for set in CapPrm CapEff CapBnd; do
        expect_eq "its $set" "$(status_of berth-agent $set)" 000000000128102a
    done
    for set in CapInh CapAmb; do
        expect_eq "its $set" "$(status_of berth-agent $set)" 0000000000000000
    done
}

case_the_spawner_has_no_filter_to_pass_on() {
    expect_eq "the spawner's seccomp mode" "$(status_of berth-spawner Seccomp)" 0
    expect_eq "its no_new_privs" "$(status_of berth-spawner NoNewPrivs)" 0
}

case_another_agent_is_confined_too() {
    before=$(status_of berth-agent Pid)
    kill -9 "$before"
    tries=0
    until berthctl info >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || fail "no agent answers after the kill"
        sleep 0.1
    done
    [ "$(status_of berth-agent Pid)" != "$before" ] || fail "the killed agent is still there"
    expect_eq "the next agent's seccomp mode" "$(status_of berth-agent Seccomp)" 2
    expect_eq "its CapEff" "$(status_of berth-agent CapEff)" 000000000128102a
}
