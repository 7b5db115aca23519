# berthctl as an OCI runtime: what runc's and crun's callers pass and expect. oci_cli.py runs all of it once more under
# `berth --helper`.
# limit: 120

root="--root /run/oci"
init_pid() { berthctl $root state "$1" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'; }
status_of() { berthctl $root state "$1" | sed -n 's/.*"status": "\([a-z]*\)".*/\1/p'; }
is_status() { [ "$(status_of "$1" 2>/dev/null)" = "$2" ]; }

case_stdio_of_run() {
    dir=$(bundle io '["sh", "-c", "read -r line; echo got $line; echo wrong >&2; exit 9"]')
    echo hello >$work/in
    status=0
    berthctl $root run -b $dir io <$work/in >$work/out 2>$work/err || status=$?
    expect_eq "status" $status 9
    expect_eq "stdout" "$(cat $work/out)" "got hello"
    expect_eq "stderr" "$(cat $work/err)" "wrong"
    # The very files, not copies of what comes through pipes.
    dir=$(bundle io '["sh", "-c", "readlink /proc/self/fd/1; readlink /proc/self/fd/2"]')
    berthctl $root run -b $dir io >$work/out 2>$work/err
    expect_eq "what stdout is" "$(head -n 1 $work/out)" $work/out
    expect_eq "what stderr is" "$(tail -n 1 $work/out)" $work/err
}

case_stdio_of_create_and_detached() {
    dir=$(bundle late '["sh", "-c", "cat; echo end"]')
    echo early >$work/in
    berthctl $root create -b $dir --pid-file $work/pid late <$work/in >$work/out 2>&1 || fail "create: $(cat $work/out)"
    expect_eq "pid file" "$(cat $work/pid)" "$(init_pid late)"
    expect_eq "descriptors of the created process" "$(readlink /proc/$(cat $work/pid)/fd/1)" $work/out
    berthctl $root start late || fail start
    wait_for 10 is_status late stopped || fail "it does not end"
    expect_eq "output" "$(cat $work/out)" "$(printf 'early\nend')"
    berthctl $root delete late || fail delete
    dir=$(bundle det '["sh", "-c", "echo started; sleep 1000"]')
    berthctl $root run -d -b $dir det >$work/out </dev/null || fail "run -d"
    wait_for 10 grep -q started $work/out || fail "no output of run -d"
    berthctl $root exec -d --pid-file $work/pid det sh -c 'echo from exec; sleep 1000' >$work/out2 || fail "exec -d"
    wait_for 10 grep -q "from exec" $work/out2 || fail "no output of exec -d"
    expect_eq "exec -d prints" "$(cat $work/out2)" "from exec"
    expect_eq "the exec" "$(tr '\0' ' ' </proc/$(cat $work/pid)/cmdline)" "sleep 1000 "
    berthctl $root delete -f det || fail "delete -f"
    [ ! -e /proc/$(cat $work/pid) ] || fail "the exec outlives delete -f"
}

case_a_pipe_ends_with_the_process() {
    # Whoever holds the caller's end of a pipe for longer than the process keeps its reader waiting.
    dir=$(bundle pipe '["sleep", "1000"]')
    berthctl $root run -d -b $dir pipe >/dev/null 2>&1 </dev/null || fail run
    expect_eq "through a pipe" "$(timeout 20 sh -c "berthctl $root exec pipe echo one | cat")" one
    expect_eq "exec -d through a pipe" "$(timeout 20 sh -c "berthctl $root exec -d pipe sh -c 'sleep 0.3; echo two' | cat")" two
    ended() { ! berthctl $root --json list pipe | grep -q '"execs":\["'; }
    wait_for 10 ended || fail "a detached exec stays on the books: $(berthctl $root --json list pipe)"
    berthctl $root delete -f pipe
}

case_closed_stdio() {
    dir=$(bundle closed '["sh", "-c", "(readlink /proc/$$/fd/0; readlink /proc/$$/fd/1) >/tmp/zero; sleep 1000"]')
    sed -i 's|"readonly": true|"readonly": false|' $dir/config.json
    rm -f $rootfs/tmp/zero
    berthctl $root run -d -b $dir closed <&- >&- || fail "run with closed stdin and stdout"
    wait_for 10 grep -q . $rootfs/tmp/zero
    wait_for 10 test "$(wc -l <$rootfs/tmp/zero)" = 2
    expect_eq "closed descriptors" "$(cat $rootfs/tmp/zero)" "$(printf '/dev/null\n/dev/null')"
    berthctl $root delete -f closed
}

case_preserved_descriptors_and_listen_fds() {
    echo three >$work/three
    echo four >$work/four
    dir=$(bundle fds '["sh", "-c", "cat /proc/self/fd/3 /proc/self/fd/4; echo $LISTEN_FDS $LISTEN_PID"]')
    out=$(berthctl $root run --preserve-fds 2 -b $dir fds 3<$work/three 4<$work/four) || fail "run: $out"
    expect_eq "run --preserve-fds 2" "$(echo "$out" | head -n 2)" "$(printf 'three\nfour')"
    out=$(LISTEN_FDS=1 LISTEN_PID=1 berthctl $root run --preserve-fds=1 -b $dir fds 3<$work/three 4<$work/four) || fail "run: $out"
    expect_has "LISTEN_FDS" "$out" "1 1"
    expect_eq "with LISTEN_FDS" "$(echo "$out" | head -n 2)" "$(printf 'three\nfour')"
    expect_refused "preserved-fd 0" berthctl $root run --preserve-fds 1 -b $dir fds
    dir=$(bundle fds '["sleep", "1000"]')
    berthctl $root run -d -b $dir fds >/dev/null 2>&1 3<$work/three || fail "run -d"
    [ ! -e /proc/$(init_pid fds)/fd/3 ] || fail "a descriptor came in that nobody asked to preserve"
    expect_eq "exec --preserve-fds" "$(berthctl $root exec --preserve-fds 1 fds cat /proc/self/fd/3 3<$work/three)" three
    berthctl $root delete -f fds
}

case_roots_separate_names() {
    dir=$(bundle a '["sleep", "1000"]')
    berthctl --root /run/oci-a run -d -b $dir same >/dev/null </dev/null 2>&1 || fail "in a"
    berthctl --root=/run/oci-b/deep run -d -b $dir same >/dev/null </dev/null 2>&1 || fail "the same id in b"
    berthctl --root /run/oci-b/deep run -d -b $dir other >/dev/null </dev/null 2>&1 || fail "another in b"
    expect_refused "already exists" berthctl --root /run/oci-a run -d -b $dir same
    expect_eq "a" "$(berthctl --root /run/oci-a list -q)" same
    expect_eq "b" "$(berthctl --root /run/oci-b/deep list -q | sort | tr '\n' ' ')" "other same "
    a=$(berthctl --root /run/oci-a ps -f json same | tr -d '[]')
    b=$(berthctl --root /run/oci-b/deep ps -f json same | tr -d '[]')
    [ -d /proc/$a ] && [ -d /proc/$b ] && [ "$a" != "$b" ] || fail "pids $a and $b"
    berthctl --root /run/oci-b/deep kill same KILL || fail kill
    gone() { [ ! -d /proc/$1 ]; }
    wait_for 10 gone $b || fail "b's is alive"
    [ -d /proc/$a ] || fail "a's went with b's"
    expect_refused "container does not exist" berthctl --root /run/oci-c state same
    berthctl --root /run/oci-c delete --force same || fail "delete --force of nothing"
    berthctl --root /run/oci-b/deep delete --regex -f '^(same|other)$' || fail "delete --regex"
    expect_eq "b afterwards" "$(berthctl --root /run/oci-b/deep list -q)" ""
    berthctl --root /run/oci-a delete -f same
}

case_hooks_hear_the_users_id() {
    dir=$(bundle h '["true"]' 's|"linux": {|"hooks": {"createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", "cat >/run/test/state"]}]}, "linux": {|')
    berthctl --root /run/oci-a create -b $dir hid >/dev/null </dev/null 2>&1 || fail "create in a"
    berthctl --root /run/oci-b create -b $dir hid >/dev/null </dev/null 2>&1 || fail "create in b"
    expect_has "the state on a hook's stdin" "$(cat $work/state)" '"id":"hid"'
    berthctl --root /run/oci-a delete hid && berthctl --root /run/oci-b delete hid || fail delete
}

case_console_socket() {
    dir=$(bundle tty '["sh", "-c", "tty; stty size; echo done"]' 's|"terminal": false|"terminal": true, "consoleSize": {"height": 11, "width": 77}|')
    expect_refused "console socket" berthctl $root create -b $dir tty
    expect_refused "console socket" berthctl $root run -d -b $dir tty
    rm -f $work/sock
    console_socket $work/sock >$work/seen &
    wait_for 10 test -S $work/sock
    cd $work
    berthctl $root create -b $dir --console-socket sock tty || fail create
    berthctl $root start tty || fail start
    wait_for 10 is_status tty stopped || fail "it does not end"
    wait_for 10 grep -q done $work/seen || fail "$(cat $work/seen)"
    expect_eq "what came" "$(tr -d '\r' <$work/seen)" "$(printf 'text /dev/ptmx\nterminal\n/dev/pts/0\n11 77\ndone')"
    berthctl $root delete tty
    dir=$(bundle tty '["sleep", "1000"]')
    expect_refused "console socket" berthctl $root run -d -b $dir --console-socket sock tty
    berthctl $root run -d -b $dir tty >/dev/null 2>&1 </dev/null || fail run
    expect_refused "console socket" berthctl $root exec -d -t tty tty
    rm -f $work/sock
    console_socket $work/sock >$work/seen &
    wait_for 10 test -S $work/sock
    berthctl $root exec -d -t --console-socket $work/sock tty tty || fail "exec -d -t"
    wait_for 10 grep -q pts $work/seen || fail "exec: $(cat $work/seen)"
    expect_has "a terminal of ours" "$(berthctl $root exec -t tty tty </dev/null)" /dev/pts/
    rm -f $work/sock
    console_socket $work/sock pidfd >$work/seen &
    wait_for 10 test -S $work/sock
    berthctl $root exec -d --pidfd-socket $work/sock tty sleep 1000 >/dev/null 2>&1 || fail "exec --pidfd-socket"
    wait_for 10 grep -q alive $work/seen || fail "pidfd: $(cat $work/seen)"
    berthctl $root delete -f tty
}

case_signals_reach_a_foreground_process() {
    dir=$(bundle sig '["sh", "-c", "trap \"echo caught; exit 3\" TERM; echo ready; while :; do sleep 0.1; done"]')
    berthctl $root run -b $dir sig >$work/out 2>&1 &
    runner=$!
    wait_for 10 grep -q ready $work/out || fail "$(cat $work/out)"
    kill -TERM $runner
    status=0
    wait $runner || status=$?
    expect_eq "status" $status 3
    expect_has "output" "$(cat $work/out)" caught
    expect_refused "container does not exist" berthctl $root state sig
    berthctl $root run --keep -b "$(bundle sig '["sh", "-c", "exit 4"]')" sig && fail "it ended well"
    expect_eq "after --keep" "$(status_of sig)" stopped
    berthctl $root delete sig
}

case_state_list_and_ps() {
    dir=$(bundle look '["sleep", "1000"]' 's|"linux": {|"annotations": {"a.b": "c"}, "linux": {|')
    expect_eq "list of nothing" "$(berthctl --root /run/oci-none list -f json)" "[]"
    cd $dir && berthctl $root run -d look >/dev/null 2>&1 </dev/null || fail "run in the bundle's folder"
    state=$(berthctl $root state look | tr -d '\n ')
    for part in '"ociVersion":"1.2.0"' '"id":"look"' "\"pid\":$(cat /sys/fs/cgroup/berth/look/cgroup.procs)," '"status":"running"' \
        "\"bundle\":\"$dir\"" "\"rootfs\":\"$rootfs\"" '"annotations":{"a.b":"c"}'; do
        expect_has state "$state" "$part"
    done
    expect_has "list" "$(berthctl $root list | head -n 1)" "ID          PID         STATUS      BUNDLE"
    expect_has "list" "$(berthctl $root list)" "running     $dir"
    expect_has "list --format json" "$(berthctl $root list --format=json)" '{"ociVersion":"1.2.0","id":"look","pid":'
    expect_has "ps" "$(berthctl $root ps look)" "UID          PID    PPID  C STIME TTY          TIME CMD"
    expect_has "ps" "$(berthctl $root ps look)" "sleep 1000"
    [ ! -e /etc/passwd ] || mv /etc/passwd $work/passwd
    mkdir -p /etc && printf 'bin:x:1:1::/:/bin/sh\nadmin:x:0:0:the one:/root:/bin/sh\n' >/etc/passwd
    user=$(berthctl $root ps look | tail -n 1 | cut -d ' ' -f 1)
    rm /etc/passwd && { [ ! -e $work/passwd ] || mv $work/passwd /etc/passwd; }
    expect_eq "ps tells the user's name" "$user" admin
    expect_eq "ps lines" "$(berthctl $root ps look | wc -l)" 2
    expect_has "ps with options" "$(berthctl $root ps look -o pid,args)" "sleep 1000"
    expect_eq "ps -f json" "$(berthctl $root ps -f json look)" "[$(init_pid look)]"
    berthctl $root kill look 9 || fail kill
    wait_for 10 is_status look stopped
    expect_eq "ps of a stopped one" "$(berthctl $root ps look | wc -l)" 1
    expect_refused "container not running" berthctl $root kill look TERM
    expect_refused "container not running" berthctl $root kill look 0
    berthctl $root kill -a look 0 || fail "kill --all 0 of a stopped one"
    berthctl $root kill --all look KILL || fail "kill --all KILL of a stopped one"
    expect_refused "stopped container" berthctl $root exec look true
    berthctl $root delete look
}

case_exec_as_runc() {
    dir=$(bundle x '["sleep", "1000"]')
    berthctl $root run -d -b $dir x >/dev/null 2>&1 </dev/null || fail run
    expect_status 255 berthctl $root exec x nosuch
    expect_has "exec of nothing" "$err" "no such file or directory"
    expect_status 255 berthctl $root exec --pid-file /nowhere/pid x sleep 1000
    [ "$(wc -l </sys/fs/cgroup/berth/x/cgroup.procs)" = 1 ] || fail "an exec without its pid file lives on"
    expect_status 255 berthctl $root exec nobody true
    expect_status 42 berthctl $root exec x sh -c "exit 42"
    expect_status 137 berthctl $root exec x sh -c 'kill -KILL $$'
    expect_status 0 berthctl $root exec --user 1000:1000 --additional-gids 100 --additional-gids 65534 x id -G
    expect_eq "groups" "$out" "1000 100 65534"
    printf '{"args": ["sh", "-c", "echo $P; pwd"], "cwd": "/etc", "env": ["PATH=/bin", "P=q"]}' >$work/process
    expect_eq "exec -p" "$(berthctl $root exec -p $work/process x | tr '\n' ' ')" "q /etc "
    # The configuration is that of Create, whatever became of the bundle.
    echo '{}' >$dir/config.json
    expect_has "environment" "$(berthctl $root exec x env)" "PATH="
    # The container's holds for all but the machine's own root, who says it anew (crun).
    [ -e /run/helper.log ] && kept=0 || kept=1
    expect_has "noNewPrivileges" "$(berthctl $root exec x cat /proc/self/status)" "$(printf 'NoNewPrivs:\t%s' $kept)"
    expect_has "--no-new-privs" "$(berthctl $root exec --no-new-privs x cat /proc/self/status)" "$(printf 'NoNewPrivs:\t1')"
    berthctl $root pause x
    expect_refused "paused container" berthctl $root exec x true
    berthctl $root exec --ignore-paused x echo resumed >$work/out &
    waiting=$!
    sleep 0.5
    [ ! -s $work/out ] || fail "it ran while paused"
    berthctl $root resume x
    wait $waiting || fail "exec --ignore-paused"
    expect_eq "--ignore-paused" "$(cat $work/out)" resumed
    printf '{"args": ["sleep", "1000"], "cwd": "/", "scheduler": {"policy": "SCHED_DEADLINE", "nice": 19, "runtime": 1000000, "deadline": 10000000, "period": 10000000}}' >$work/process
    berthctl $root exec -d -p $work/process --pid-file $work/pid x >/dev/null 2>&1 || fail "exec with a deadline"
    expect_eq "its policy (SCHED_DEADLINE)" "$(cut -d " " -f 41 /proc/$(cat $work/pid)/stat)" 6
    expect_refused "apparmor" berthctl $root exec --apparmor nosuchprofile x true
    expect_refused "SELinux" berthctl $root exec --process-label a:b:c:d x true
    berthctl $root delete -f x
}

case_exec_into_a_sub_cgroup() {
    dir=$(bundle sub '["sleep", "1000"]')
    berthctl $root run -d -b $dir sub >/dev/null 2>&1 </dev/null || fail run
    mkdir /sys/fs/cgroup/berth/sub/below
    berthctl $root exec -d --cgroup below --pid-file $work/pid sub sleep 1000 >/dev/null 2>&1 || fail "exec --cgroup"
    expect_eq "cgroup" "$(cat /proc/$(cat $work/pid)/cgroup)" 0::/berth/sub/below
    expect_refused "bad sub cgroup path" berthctl $root exec --cgroup ../x sub true
    expect_refused "no such file" berthctl $root exec --cgroup nowhere sub true
    berthctl $root exec --cgroup / sub true || fail "--cgroup /"
    berthctl $root delete -f sub || fail "delete -f"
    [ ! -d /sys/fs/cgroup/berth/sub ] || fail "its cgroups are left"
}

case_update_and_events() {
    dir=$(bundle u '["sleep", "1000"]')
    berthctl $root run -d -b $dir u >/dev/null 2>&1 </dev/null || fail run
    cgroup=/sys/fs/cgroup/berth/u
    berthctl $root update --memory 64M --pids-limit 20 --cpu-quota 50000 --cpu-period 100000 --cpu-shares 1024 u || fail update
    expect_eq "memory.max" "$(cat $cgroup/memory.max)" 67108864
    expect_eq "pids.max" "$(cat $cgroup/pids.max)" 20
    expect_eq "cpu.max" "$(cat $cgroup/cpu.max)" "50000 100000"
    echo '{"memory": {"limit": 33554432, "reservation": 1048576}}' | berthctl $root update -r - u || fail "update -r -"
    expect_eq "memory.max" "$(cat $cgroup/memory.max)" 33554432
    expect_eq "memory.low" "$(cat $cgroup/memory.low)" 1048576
    expect_refused "memory" berthctl $root update --memory 1x u
    stats=$(berthctl $root events --stats u)
    case $stats in
    '{"type":"stats","id":"u","data":{"cpu":{"usage":{"total":'*'"pids":{"current":1,"limit":20}'*) ;;
    *) fail "events --stats: $stats" ;;
    esac
    berthctl $root update --memory 16M --memory-swap 16M u || fail "update without swap"
    berthctl $root events --interval 200ms u >$work/events &
    watcher=$!
    wait_for 10 grep -q stats $work/events || fail "no stats"
    berthctl $root exec u sh -c 'tail -c 100m /dev/zero' >/dev/null 2>&1
    wait_for 10 grep -qx '{"type":"oom","id":"u"}' $work/events || fail "no oom: $(tail -n 2 $work/events)"
    berthctl $root delete -f u
    wait $watcher || fail "events end with status $?"
}

case_spec_and_features() {
    make_rootfs
    rm -rf $work/s && mkdir $work/s
    berthctl $root spec -b $work/s || fail spec
    expect_refused "exists" berthctl $root spec --bundle $work/s
    sed -i -e 's|"terminal": true|"terminal": false|' -e "s|\"rootfs\"|\"$rootfs\"|" -e 's|"sh"|"hostname"|' $work/s/config.json
    expect_eq "its container" "$(berthctl $root run -b $work/s s)" berth
    sed 's|"linux": {|"hooks": {"poststart": [{"path": "/bin/false"}]}, "linux": {|' $work/s/config.json >$work/other.json
    expect_status 1 berthctl $root run -b $work/s -f $work/other.json s
    expect_has "a poststart hook that fails" "$err" "error running poststart hook #0"
    expect_refused "container does not exist" berthctl $root state s
    # Another file in its place.
    sed 's|"hostname": "berth"|"hostname": "changed"|' $work/s/config.json >$work/other.json
    expect_eq "run --config" "$(cd $work && berthctl $root run -b $work/s -f other.json s)" changed
    rm -rf $work/s && mkdir $work/s
    (cd $work/s && berthctl $root spec --rootless) || fail "spec --rootless"
    sed -i -e 's|"terminal": true|"terminal": false|' -e "s|\"rootfs\"|\"$rootfs\"|" -e 's|"sh"|"cat", "/proc/self/uid_map"|' $work/s/config.json
    expect_eq "its user namespace" "$(berthctl $root run -b $work/s s | tr -s ' ')" " 0 0 1"
    features=$(berthctl $root features | tr -d '\n ')
    for part in '"ociVersionMin":"1.0.0"' '"hooks":["prestart"' '"v2":true' '"SCMP_ACT_NOTIFY"' '"CAP_SYS_ADMIN"' '"rro"'; do
        expect_has features "$features" "$part"
    done
    for type in cgroup ipc mount network pid user uts; do
        file=$(echo $type | sed 's/mount/mnt/;s/network/net/')
        [ ! -e /proc/self/ns/$file ] || expect_has "namespaces of features" "$features" "\"$type\""
    done
}

case_errors_and_logs() {
    expect_status 1 berthctl $root --log $work/log.json --log-format json state nobody
    expect_eq "one line" "$(echo "$err" | wc -l)" 1
    expect_has "stderr" "$err" "container does not exist"
    expect_has "the log" "$(cat $work/log.json)" '{"level":"error","msg":"container'
    expect_has "the log" "$(cat $work/log.json)" '"time":"20'
    expect_status 1 berthctl $root --log file:$work/log.text state nobody
    expect_has "the log" "$(cat $work/log.text)" 'level=error msg="container'
    expect_status 0 berthctl $root --debug list
    expect_has "--debug" "$err" level=debug
    expect_refused "log-format" berthctl --log-format xml list
    expect_refused "systemd" berthctl --systemd-cgroup list
    expect_refused "systemd" berthctl --cgroup-manager systemd list
    berthctl --cgroup-manager=cgroupfs $root list >/dev/null || fail "--cgroup-manager=cgroupfs"
    berthctl --rootless=false --criu /x $root list >/dev/null || fail "--rootless, --criu"
    dir=$(bundle bad '["/nosuch"]')
    expect_status 1 berthctl $root create -b $dir bad
    expect_has "a missing binary, at create" "$err" '"/nosuch"'
    expect_has "a missing binary, at create" "$err" "no such file or directory"
    expect_refused "container does not exist" berthctl $root state bad
    # It is there and cannot be executed: what a runtime without an agent leaves, and all of it in the log.
    make_rootfs
    dir=$(bundle bad '["/run.sh"]')
    printf '#!/nosuch\n' >$rootfs/run.sh && chmod +x $rootfs/run.sh
    expect_status 1 berthctl $root --log $work/log.exec run -b $dir bad
    expect_eq "what run leaves" "$err" "exec /run.sh: no such file or directory"
    expect_has "the log" "$(cat $work/log.exec)" 'execve: ENOENT'
    rm $rootfs/run.sh
    dir=$(bundle told '["sleep", "1000"]')
    expect_status 0 berthctl $root --debug run -d -b $dir told
    expect_has "--debug run" "$err" "child process in init()"
    echo '{"args": ["true"], "cwd": "/", "execCPUAffinity": {"initial": "0"}}' >$work/affinity.json
    expect_status 0 berthctl $root --debug exec -p $work/affinity.json told
    expect_has "--debug exec" "$err" "affinity: 0x1"
    expect_has "--debug exec" "$err" "setns_init: about to exec"
    berthctl $root delete -f told
    expect_status 1 berthctl $root run --pid-file /nowhere/pid -b "$(bundle bad '["sleep", "1000"]')" bad
    expect_refused "container does not exist" berthctl $root state bad
}

# As runc has it: what earlier mounts put below the root file system's directory is a source of later ones, and a
# destination may repeat the path of that directory.
case_sources_that_earlier_mounts_made() {
    make_rootfs
    mkdir -p $work/src/a $rootfs/mnt $rootfs/final
    echo inside >$work/src/a/file
    mounts="{\"destination\": \"/mnt\", \"source\": \"$work/src\", \"options\": [\"bind\"]},"
    mounts="$mounts {\"destination\": \"$rootfs/final\", \"source\": \"$rootfs/mnt/a\", \"options\": [\"rbind\"]},"
    dir=$(bundle m '["cat", "/final/file"]' "s|\"mounts\": \[|&$mounts|")
    expect_eq "what it reads" "$(berthctl $root run -b $dir m)" inside
    # A link there leads within the container, not to a file of the guest's.
    echo outside >$work/secret && ln -sfn $work/secret $rootfs/mnt/link
    mounts="{\"destination\": \"/final\", \"source\": \"$rootfs/mnt/link\", \"options\": [\"bind\"]},"
    dir=$(bundle m '["cat", "/final"]' "s|\"mounts\": \[|&$mounts|")
    expect_refused "ENOENT" berthctl $root run -b $dir m
}

# As runc and crun: a bind with a word about attributes has those that were written, and no others of its source. Access
# times are kept unless they are chosen.
case_a_bind_has_the_attributes_that_were_written() {
    make_rootfs
    mkdir -p $work/flags $rootfs/mnt
    mount -t tmpfs flags $work/flags
    mount -o remount,bind,ro,nosuid,noexec,noatime $work/flags
    flags_of() {
        entry="{\"destination\": \"/mnt\", \"source\": \"$work/flags\", \"options\": [\"bind\"$1]},"
        flags_dir=$(bundle m '["cat", "/proc/self/mounts"]' "s|\"mounts\": \[|&$entry|")
        berthctl $root run -b $flags_dir m | sed -n 's/^[^ ]* \/mnt [^ ]* \([^ ]*\) .*/\1/p' | tr , '\n' |
            grep -x -e ro -e rw -e nosuid -e nodev -e noexec -e noatime -e relatime | tr '\n' ' '
    }
    expect_eq "no word" "$(flags_of '')" "ro nosuid noexec noatime "
    expect_eq "dev" "$(flags_of ', "dev"')" "rw noatime "
    expect_eq "nosuid, relatime" "$(flags_of ', "nosuid", "relatime"')" "rw nosuid relatime "
    expect_eq "ro, atime" "$(flags_of ', "ro", "atime"')" "ro noatime "
    umount $work/flags
}

# It would wait for its start for ever: as the first process of its pid namespace it gets no signal without a handler.
case_a_created_container_ends_at_sigterm() {
    dir=$(bundle t '["sleep", "1000"]')
    for signal in TERM INT; do
        berthctl $root create -b $dir t || fail create
        berthctl $root kill t $signal
        wait_for 10 is_status t stopped || fail "SIG$signal does not end it"
        berthctl $root delete t || fail delete
    done
    # The program itself has no handler of ours.
    berthctl $root run -d -b $dir t || fail run
    berthctl $root kill t TERM
    sleep 0.3
    expect_eq "the program" "$(status_of t)" running
    berthctl $root delete -f t
}

case_notify_socket() {
    make_rootfs
    cp "$(which notify_socket)" $rootfs/bin/
    rm -f $work/manager && notify_socket $work/manager >$work/notes &
    wait_for 10 test -S $work/manager
    export NOTIFY_SOCKET=$work/manager
    talk='notify_socket -s STATUS=early; echo $NOTIFY_SOCKET; notify_socket -s "A=1
READY=1"; sleep 1000'
    dir=$(bundle ready "[\"sh\", \"-c\", \"$(echo "$talk" | sed 's/"/\\"/g' | tr '\n' '#' | sed 's/#$//; s/#/\\n/g')\"]")
    berthctl $root run -b $dir ready >$work/out 2>&1 &
    runner=$!
    wait_for 10 grep -q . $work/notes || fail "in the foreground: $(cat $work/out)"
    expect_eq "the container's socket" "$(cat $work/out)" $work/manager/notify
    expect_has "its mount" "$(grep " $work/manager " /proc/$(init_pid ready)/mountinfo)" "$work/manager ro,nosuid,nodev,noexec"
    expect_eq "what the manager hears" "$(cat $work/notes)" "$runner READY=1"
    berthctl $root kill ready KILL
    wait $runner
    [ ! -e /run/oci/ready ] || fail "left: $(find /run/oci/ready)"
    expect_eq "nothing more" "$(cat $work/notes)" "$runner READY=1"
    # Who goes away says who stays.
    berthctl $root run -d -b $dir ready >$work/out 2>&1 </dev/null || fail "run -d: $(cat $work/out)"
    expect_eq "detached" "$(tail -n +2 $work/notes | cut -d ' ' -f 2 | tr '\n' ' ')" "READY=1 MAINPID=$(init_pid ready) BARRIER=1 "
    berthctl $root delete -f ready
    berthctl $root create -b $dir ready >$work/out 2>&1 </dev/null || fail "create: $(cat $work/out)"
    expect_eq "created" "$(wc -l <$work/notes)" 4
    timeout 20 berthctl $root start ready || fail "start does not come back"
    expect_eq "started" "$(tail -n +5 $work/notes | cut -d ' ' -f 2 | tr '\n' ' ')" "READY=1 MAINPID=$(init_pid ready) BARRIER=1 "
    # Another of that id is refused, and takes nothing from the first.
    expect_refused "already exists" berthctl $root run -b $dir ready
    [ -S /run/oci/ready/notify/notify ] || fail "the socket of the first is gone"
    berthctl $root delete -f ready
    [ ! -e /run/oci/ready ] || fail "left: $(find /run/oci/ready)"
    # It ends without a word: nobody waits for ever.
    dir=$(bundle silent '["sleep", "0.5"]')
    timeout 20 berthctl $root run -d -b $dir silent >/dev/null 2>&1 </dev/null || fail "run -d waits for ever"
    berthctl $root delete silent || fail "delete"
    # Created without, started with.
    dir=$(bundle silent '["sleep", "1000"]')
    (unset NOTIFY_SOCKET && berthctl $root create -b $dir silent >/dev/null 2>&1 </dev/null) || fail create
    timeout 20 berthctl $root start silent || fail "start waits for what cannot be said"
    berthctl $root delete -f silent
    unset NOTIFY_SOCKET
}

case_ambient_capabilities_that_cannot_be() {
    dir=$(bundle amb '["grep", "CapAmb", "/proc/self/status"]' \
        's|"ambient": \[|"inheritable": ["CAP_KILL"], "ambient": ["CAP_CHOWN",|')
    expect_status 0 berthctl $root run -b $dir amb
    expect_has "a warning" "$err" "can't raise ambient capability CAP_CHOWN: "
    case $err in *CAP_KILL*) fail "not true: $err" ;; esac
    expect_eq "the ambient set" "$out" "$(printf 'CapAmb:\t0000000000000020')"
    expect_status 0 berthctl $root run -b "$(bundle amb '["true"]')" amb
    expect_eq "of none inheritable" "$err" ""
}

case_unified_keys_with_a_property() {
    # Where the agent is the guest's: its ten keys and no other.
    if berthctl info | grep -q '^init *berth$'; then
        dir=$(bundle uni '["true"]' 's|"resources": {|"resources": {"unified": {"cpu.weight": "42"},|')
        expect_refused 'unified["cpu.weight"]' berthctl $root run -b $dir uni
        berthctl $root run -d -b "$(bundle uni '["sleep", "1000"]')" uni >$work/out 2>&1 </dev/null || fail "run: $(cat $work/out)"
        expect_refused 'unified["cpu.max"]' berthctl $root update --unified cpu.max=20000 uni
        berthctl $root delete -f uni
        return
    fi
    dir=$(bundle uni '["sleep", "1000"]' 's|"resources": {|"resources": {"unified": {"cpu.max": "20000 100000", "cpu.weight": "42", "pids.max": "77"},|')
    berthctl $root run -d -b $dir uni >$work/out 2>&1 </dev/null || fail "run: $(cat $work/out)"
    cgroup=/sys/fs/cgroup/berth/uni
    expect_eq "cpu.max" "$(cat $cgroup/cpu.max)" "20000 100000"
    expect_eq "cpu.weight" "$(cat $cgroup/cpu.weight)" 42
    expect_eq "pids.max" "$(cat $cgroup/pids.max)" 77
    echo '{"unified": {"cpu.max": "max 50000", "cpu.weight": "43", "memory.high": "33554432"}}' | berthctl $root update -r - uni || fail update
    expect_eq "cpu.max" "$(cat $cgroup/cpu.max)" "max 50000"
    expect_eq "cpu.weight" "$(cat $cgroup/cpu.weight)" 43
    expect_eq "memory.high" "$(cat $cgroup/memory.high)" 33554432
    expect_refused 'unified["cpu.weight"]' berthctl $root update --unified cpu.weight=0 uni
    expect_refused 'unified["cgroup.procs"]' berthctl $root update --unified cgroup.procs=1 uni
    expect_eq "cpu.weight" "$(cat $cgroup/cpu.weight)" 43
    berthctl $root delete -f uni
}

case_exec_beside_an_init_that_moved() {
    dir=$(bundle moved '["sh", "-c", "mkdir /sys/fs/cgroup/a; echo $$ >/sys/fs/cgroup/a/cgroup.procs; echo ready; exec sleep 1000"]' \
        '/"type": "cgroup"/,/\]/s|"ro"|"rw"|' 's|"namespaces": \[|"namespaces": [{"type": "cgroup"},|')
    berthctl $root run -d -b $dir moved >$work/out 2>&1 </dev/null || fail "run: $(cat $work/out)"
    wait_for 10 grep -q ready $work/out || fail "$(cat $work/out)"
    # The machine's own root gets what runc does; a host must not keep the init from passing its controllers on.
    [ -e /run/helper.log ] && first=0::/ || first=0::/a
    expect_eq "exec" "$(berthctl $root exec moved cat /proc/self/cgroup)" $first
    berthctl $root exec --cgroup a moved sh -c 'echo +pids >/sys/fs/cgroup/cgroup.subtree_control' || fail "controllers"
    expect_eq "exec where no process may be" "$(berthctl $root exec moved cat /proc/self/cgroup)" 0::/a
    expect_refused "device or resource busy" berthctl $root exec --cgroup / moved true
    expect_refused "path .. is not a sub cgroup path" berthctl $root exec --cgroup .. moved true
    expect_refused "/nowhere/cgroup.procs: no such file" berthctl $root exec --cgroup nowhere moved true
    berthctl $root delete -f moved
}

case_a_capability_opens_the_program() {
    make_rootfs
    printf '#!/bin/sh\necho opened\n' >$rootfs/bin/closed && chmod 744 $rootfs/bin/closed
    user='s|"uid": 0|"uid": 1000|;s|"gid": 0|"gid": 1000|'
    expect_status 1 berthctl $root run -b "$(bundle dac '["/bin/closed"]' "$user")" dac
    expect_has "without it" "$err" "permission denied"
    # The shell that the file names reads it, with the ambient capability.
    expect_status 0 berthctl $root run -b "$(bundle dac '["/bin/closed"]' "$user" 's|"CAP_KILL"|"CAP_KILL", "CAP_DAC_OVERRIDE"|' \
        's|"ambient": \[|"inheritable": ["CAP_DAC_OVERRIDE"], "ambient": [|')" dac
    expect_eq "with it" "$out" opened
    rm $rootfs/bin/closed
}

case_a_terminal_of_ours_gives_plain_lines() {
    dir=$(bundle lf '["sh", "-c", "echo one; stty -a 2>/dev/null | grep -o [-]*onlcr"]' 's|"terminal": false|"terminal": true|')
    berthctl $root run -b $dir lf </dev/null >$work/out || fail "run: $(cat $work/out)"
    expect_eq "run" "$(cat $work/out)" "$(printf 'one\n-onlcr')"
    dir=$(bundle lf '["sleep", "1000"]')
    berthctl $root run -d -b $dir lf </dev/null >/dev/null 2>&1 || fail "run -d"
    expect_eq "exec -t" "$(berthctl $root exec -t lf echo two </dev/null)" two
    berthctl $root delete -f lf
}

case_a_read_only_dev() {
    look='grep " /dev[ /]" /proc/mounts | cut -d " " -f 2,4 | cut -d , -f 1; touch /dev/shm/x && echo written; : >/dev/null && echo null; touch /dev/x'
    dir=$(bundle rodev "[\"sh\", \"-c\", \"$(echo "$look" | sed 's/"/\\"/g')\"]" '/"destination": "\/dev",/,/\]/s|"nosuid"|"nosuid", "ro"|')
    berthctl $root run -b $dir rodev >$work/out 2>$work/err
    expect_eq "/dev is one mount" "$(grep '^/dev ' $work/out)" "/dev ro"
    expect_eq "what lies below" "$(grep '^/dev/' $work/out | grep -v ' rw' | head -n 1)" ""
    expect_eq "shm and null" "$(tail -n 2 $work/out | tr '\n' ' ')" "written null "
    expect_has "a file in it" "$(cat $work/err)" "Read-only file system"
}

case_a_profile_holds_for_execs_and_hooks() {
    profile='"seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_KILL"}]},'
    dir=$(bundle prof '["sleep", "1000"]' "s|\"linux\": {|\"linux\": {$profile|")
    berthctl $root run -d -b $dir prof >$work/out 2>&1 </dev/null || fail "run: $(cat $work/out)"
    expect_eq "an exec" "$(berthctl $root exec prof echo fine)" fine
    expect_status 159 berthctl $root exec prof sh -c 'mkdir /dev/shm/x; kill -31 $$'
    berthctl $root exec prof test -d /dev/shm/x && fail "the exec made a folder"
    berthctl $root delete -f prof
    dir=$(bundle prof '["true"]' "s|\"linux\": {|\"hooks\": {\"startContainer\": [{\"path\": \"/bin/mkdir\", \"args\": [\"mkdir\", \"/dev/shm/x\"]}]}, \"linux\": {$profile|")
    expect_status 1 berthctl $root run -b $dir prof
    expect_has "a startContainer hook" "$err" "killed by signal 31"
    expect_has "a startContainer hook" "$err" "(bad system call)"
}
