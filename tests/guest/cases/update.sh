# Updates: while the kernel reclaims, in every state of a container, of the sandbox, and over the agent's restart.
# limit: 300

prepare() {
    make_rootfs
    cp /tests/bin/hold_memory $rootfs/bin/
}
box() {
    dir=$(bundle $1 '["sleep","1000"]')
    berthctl create --bundle $dir $1 || fail "create $1"
}
value() { cat /sys/fs/cgroup/berth/$1; }

case_other_calls_are_answered_while_the_kernel_reclaims() {
    prepare
    agent_calls busy || fail "agent_calls busy"
}
case_a_deadline_takes_everything_back() {
    prepare
    agent_calls deadline || fail "agent_calls deadline"
}
case_deleted_meanwhile() {
    prepare
    agent_calls delete || fail "agent_calls delete"
}

case_in_every_state() {
    box up
    berthctl update --memory 67108864 up || fail "created"
    expect_eq "created" "$(value up/memory.max)" 67108864
    berthctl start up && berthctl pause up || fail "start, pause"
    berthctl update --memory 33554432 up || fail "paused"
    expect_eq "paused" "$(value up/memory.max)" 33554432
    expect_eq "still frozen" "$(value up/cgroup.freeze)" 1
    berthctl resume up || fail resume
    berthctl kill --all up KILL
    berthctl wait up >/dev/null
    expect_refused 'update "up": the container is not running' berthctl update --memory 67108864 up
    expect_eq "stopped" "$(value up/memory.max)" 33554432
    berthctl delete up || fail delete
    expect_refused 'container "up": not found' berthctl update --memory 67108864 up
}

# What the update would change is written down first; when it cannot be, nothing is changed.
case_a_state_file_that_cannot_be_written() {
    box up
    box other  # the agent keeps the state file open that it wrote last: not up's from here on
    mv /run/berth/state/up/state $work/state.up
    mkdir /run/berth/state/up/state
    expect_refused 'update "up": open /run/berth/state/up/state: EISDIR' berthctl update --memory 67108864 --pids-limit 9 up
    expect_eq "memory.max" "$(value up/memory.max)" max
    expect_eq "pids.max" "$(value up/pids.max)" max
    rmdir /run/berth/state/up/state
    mv $work/state.up /run/berth/state/up/state
    berthctl update --memory 67108864 up || fail "the next update"
    berthctl delete --force up && berthctl delete --force other || fail delete
}

agent_pid() {
    for pid in $(cat /sys/fs/cgroup/berth.agent/cgroup.procs); do
        case $(cat /proc/$pid/cmdline 2>/dev/null) in berth-agent*) echo $pid ;; esac
    done
}
# replace_agent COMMAND...: runs what ends it, and waits for the next one. Ended on purpose (SIGHUP to PID 1) is no crash.
replace_agent() {
    old=$(agent_pid)
    "$@"
    other_agent() { new=$(agent_pid) && [ -n "$new" ] && [ "$new" != "$old" ] && berthctl info >/dev/null 2>&1; }
    wait_for 60 other_agent || fail "no new agent"
}

case_what_was_asked_survives_the_agent() {
    box up
    berthctl update --memory 67108864 --memory-swap 134217728 up || fail update
    replace_agent kill -HUP 1
    # The total is the promise: the new agent knows it.
    berthctl update --memory 33554432 up || fail "update after the restart"
    expect_eq memory.swap.max "$(value up/memory.swap.max)" 100663296
    berthctl delete --force up || fail delete
}

# An agent that dies while the kernel reclaims: its successor takes the update back.
case_cut_off_by_the_agents_death() {
    prepare
    dir=$(bundle held '["/bin/hold_memory","40000000"]')
    berthctl create --bundle $dir held && berthctl start held || fail "start"
    holds() { [ "$(value held/memory.current)" -ge 40000000 ]; }
    wait_for 60 holds || fail "it does not take its memory"
    berthctl update --pids-limit 50 --memory 4194304 --memory-swap -1 --cpu-share 512 held >/dev/null 2>&1 &
    under_way() { [ "$(value held/memory.max)" = 4194304 ]; }
    wait_for 30 under_way || fail "the update does not begin"
    replace_agent kill -KILL $(agent_pid)
    wait
    replace_agent kill -HUP 1
    undone() { [ "$(value held/memory.max)" = max ]; }
    if [ "$(value held/pids.max)" = 50 ]; then
        berthctl delete --force held
        skip "the update was over before the agent died"
    fi
    wait_for 20 undone || fail "memory.max is $(value held/memory.max)"
    expect_eq cpu.weight "$(value held/cpu.weight)" 100
    berthctl update --pids-limit 60 held || fail "an update after it"
    berthctl delete --force held || fail delete
}

case_the_sandbox() {
    sandbox=/sys/fs/cgroup/berth
    before=$(cat $sandbox/cpu.weight $sandbox/pids.max $sandbox/memory.swap.max)
    berthctl update --sandbox --memory 268435456 --memory-swap 335544320 --pids-limit 500 || fail "update --sandbox"
    expect_eq memory.max "$(cat $sandbox/memory.max)" 268435456
    expect_eq memory.swap.max "$(cat $sandbox/memory.swap.max)" 67108864
    expect_eq pids.max "$(cat $sandbox/pids.max)" 500
    expect_refused "update the sandbox: memory.swap: 335544320 (memory and swap together) is below the memory limit 536870912" \
        berthctl update --sandbox --memory 536870912
    expect_refused "is not a key that this agent writes" berthctl update --sandbox --pids-limit 9 --unified memory.foo=1
    echo '{"devices":[]}' >$work/devices.json
    expect_refused "devices: only a container has a device program" berthctl update --sandbox --resources $work/devices.json
    expect_eq "pids.max after the refusals" "$(cat $sandbox/pids.max)" 500
    replace_agent kill -HUP 1
    berthctl update --sandbox --memory 134217728 || fail "update --sandbox after the restart"
    expect_eq "memory.swap.max from the total of before" "$(cat $sandbox/memory.swap.max)" 201326592
    # A container obeys both.
    box up
    berthctl delete --force up || fail delete
    berthctl update --sandbox --memory -1 --memory-swap -1 --pids-limit -1 || fail "lift the limits"
    expect_eq "as before" "$(cat $sandbox/cpu.weight $sandbox/pids.max $sandbox/memory.swap.max)" "$before"
}
