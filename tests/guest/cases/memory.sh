# memory.events as events: exact, in order, and to those who come back late. The counting is in programs/agent_calls.cc.
# limit: 2400
# kernel: both

prepare() {
    make_rootfs
    cp /tests/bin/hold_memory $rootfs/bin/
}
run() { "$@" || fail "agent_calls: $*"; }

case_who_was_killed_is_told_apart() {
    prepare
    run agent_calls oom
}
case_kills_are_counted_over_broken_subscriptions() {
    prepare
    run agent_calls kills 10 30
}
long_ten_thousand_kills() {
    prepare
    run agent_calls kills 100 100
}
case_lost_marker_with_right_totals() {
    prepare
    run agent_calls lost
}
case_pressure_by_request() {
    prepare
    [ -e /sys/fs/cgroup/berth/memory.pressure ] || skip "this kernel has no PSI"
    run agent_calls pressure
}
