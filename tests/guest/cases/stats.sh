# Statistics against the kernel's files. The comparison is in programs/agent_calls.cc.
# limit: 300

case_every_value_is_the_files() {
    make_rootfs
    cp /tests/bin/hold_memory $rootfs/bin/
    agent_calls stats || fail "agent_calls stats"
}

case_berthctl_prints_them() {
    dir=$(bundle measured '["sleep","1000"]')
    berthctl create --bundle $dir measured || fail create
    berthctl --json stats measured >$work/one
    expect_has "stats of one" "$(cat $work/one)" '"pids":{"current":1,'
    berthctl --json stats --sandbox >$work/all
    expect_has "stats of all" "$(cat $work/all)" '"measured":{"pids":{"current":1,'
    expect_has "the sandbox" "$(cat $work/all)" '{"sandbox":{"pids":{"current":'
    expect_refused "not found" berthctl stats nobody
    berthctl delete --force measured || fail delete
}

long_what_they_cost() {
    make_rootfs
    for containers in 1 100; do agent_calls stats-cost $containers || fail "agent_calls stats-cost"; done
}
