# The life of containers and execs: what is allowed when, exit statuses, signals, freezing, reaping.
# limit: 120
# kernel: both

cgroup_of() { echo /sys/fs/cgroup/berth/$1; }
sleeper() { # NAME [SED-SCRIPT]...: a running container that sleeps
    name=$1
    shift
    berthctl run -d -b "$(bundle $name '["sleep", "100000"]' "$@")" $name || fail "$name does not start"
}
gone() { berthctl delete -f "$1" || fail "$1 cannot be deleted"; }
status_of() { berthctl --json state "$1" | sed -n 's/.*"status": *"\([^"]*\)".*/\1/p'; }
init_of() { berthctl --json state "$1" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'; }
no_zombie() { ! grep -l '^State:.Z' /proc/[0-9]*/status >/dev/null 2>&1; }

case_exit_statuses() {
    for code in 0 1 42 255; do
        expect_status $code berthctl run --no-stdin -b "$(bundle x "[\"sh\", \"-c\", \"exit $code\"]")" x
    done
    for signal in 9 15 6; do
        expect_status $((128 + signal)) berthctl run --no-stdin -b "$(bundle x "[\"sh\", \"-c\", \"sleep 0; kill -$signal \$\$; kill -$signal -1; sleep 1000\"]" \
            '/"type": "pid"/{N;N;d}' 's/{$/{/')" x
    done
}

case_exit_statuses_of_execs() {
    sleeper e
    for code in 0 1 42 255; do expect_status $code berthctl exec --no-stdin e sh -c "exit $code"; done
    for signal in 9 15 11; do expect_status $((128 + signal)) berthctl exec --no-stdin e sh -c "kill -$signal \$\$"; done
    expect_status 255 berthctl exec --no-stdin e no-such-binary
    expect_has "a missing binary" "$err" 'process.args[0] "no-such-binary"'
    expect_has "a missing binary" "$err" ENOENT
    expect_status 255 berthctl exec --no-stdin e /etc/passwd
    expect_has "not executable" "$err" EACCES
    expect_status 255 berthctl exec --no-stdin e /etc
    expect_has "a directory" "$err" EACCES
    expect_status 255 berthctl exec --no-stdin no-such-container true
    expect_has "no container" "$err" 'no-such-container'
    wait_for 5 no_zombie || fail "a zombie is left"
    gone e
}

case_missing_binary_of_an_init() {
    snapshot before
    expect_refused 'process.args[0] "no-such-binary": ' berthctl create -b "$(bundle m '["no-such-binary"]')" m
    expect_has "why" "$err" ENOENT
    expect_refused 'EACCES' berthctl create -b "$(bundle m '["/etc/passwd"]')" m
    printf 'no program\n' >$rootfs/bin/garbage
    chmod 755 $rootfs/bin/garbage
    expect_refused 'exec garbage: exec format error' berthctl run --no-stdin -b "$(bundle m '["garbage"]')" m
    rm $rootfs/bin/garbage
    expect_unchanged before
}

case_ids() {
    snapshot before
    dir=$(bundle i '["true"]')
    long=$(printf '%0128d' 0)
    for id in .x ../x a/b 'a b' "é" "x${long}" ""; do
        expect_refused "" berthctl run --no-stdin -b "$dir" -- "$id"
    done
    for id in a a.b_c-d+e A0; do expect_status 0 berthctl run --no-stdin -b "$dir" $id; done
    expect_unchanged before
}

case_duplicates_and_wrong_moments() {
    dir=$(bundle d '["sleep", "100000"]')
    berthctl create -b $dir d || fail "create"
    expect_eq "status" "$(status_of d)" created
    expect_refused "d" berthctl create -b $dir d
    [ -d "$(cgroup_of d)" ] || fail "the second create removed the first's cgroup"
    berthctl start d || fail "start"
    expect_eq "status" "$(status_of d)" running
    expect_refused "d" berthctl start d
    expect_refused "not stopped" berthctl delete d
    kill -0 "$(init_of d)" || fail "a refused delete killed it"
    berthctl exec -d --exec-id one d sleep 100000 >/dev/null || fail "exec"
    expect_refused "one" berthctl exec -d --exec-id one d sleep 1
    expect_refused "one" berthctl start d --exec-id one
    expect_refused "not stopped" berthctl delete d --exec-id one
    berthctl kill d KILL
    expect_eq "its status" "$(berthctl wait d)" 137
    expect_eq "status" "$(status_of d)" stopped
    # pid namespace's end: the kernel killed the exec.
    expect_eq "the exec's status" "$(berthctl wait d --exec-id one)" 137
    expect_refused "already finished" berthctl kill d TERM
    expect_refused "" berthctl exec --no-stdin d true
    expect_refused "" berthctl pause d
    expect_eq "a wait after the exit" "$(berthctl wait d)" 137
    gone d
    expect_refused "d" berthctl state d
    expect_refused "d" berthctl kill d TERM
    [ ! -e "$(cgroup_of d)" ] || fail "the cgroup is left"
}

# runc's and crun's users look into a container before it runs.
case_exec_in_a_created_container() {
    dir=$(bundle e '["sh", "-c", "exec sleep 100000"]')
    snapshot before
    berthctl create -b $dir e || fail "create"
    expect_status 7 berthctl exec --no-stdin e sh -c 'exit 7'
    expect_eq "its root" "$(berthctl exec --no-stdin e sh -c '[ -e /tests ] || echo inside')" inside
    expect_eq "its pid namespace" "$(berthctl exec --no-stdin e readlink /proc/self/ns/pid)" "$(readlink /proc/$(init_of e)/ns/pid)"
    expect_eq "status" "$(status_of e)" created
    berthctl start e || fail "start"
    expect_status 0 berthctl exec --no-stdin e true
    gone e
    # An exec that still runs goes with a container that never ran.
    berthctl create -b $dir e && berthctl exec -d e sleep 100000 >/dev/null || fail "create and exec"
    berthctl delete e || berthctl delete --force e || fail "it is not deleted"
    expect_unchanged before
}

case_delete_of_a_container_that_never_ran() {
    dir=$(bundle n '["sleep", "100000"]')
    snapshot before
    berthctl create -b $dir n || fail "create"
    pid=$(init_of n)
    berthctl wait n >$work/waited &
    waiter=$!
    usleep 300000
    berthctl delete n || fail "it is not deleted"
    wait $waiter
    expect_eq "what a Wait is told" "$(cat $work/waited)" 137
    expect_refused "not found" berthctl state n
    [ ! -e "$(cgroup_of n)" ] || fail "the cgroup is left"
    [ ! -d /proc/$pid ] || fail "its init is left"
    # Paused before its start: frozen processes die, too.
    berthctl create -b $dir n && berthctl pause n || fail "create and pause"
    berthctl delete n || fail "it is not deleted when it is frozen"
    expect_unchanged before
}

case_delete_and_start_at_once() {
    dir=$(bundle r '["sleep", "100000"]')
    snapshot before
    deleted=0 ran=0
    for round in 1 2 3 4 5 6 7 8; do
        berthctl create -b $dir r || fail "create"
        # Who comes first wins, and the other is told so. Both orders happen, whatever the machine does.
        if [ $((round % 2)) = 0 ]; then first=start second=delete; else first=delete second=start; fi
        berthctl $first r 2>$work/$first.err &
        racer=$!
        second_status=0
        berthctl $second r 2>$work/$second.err || second_status=$?
        first_status=0
        wait $racer || first_status=$?
        if [ $first = start ]; then started=$first_status removed=$second_status; else started=$second_status removed=$first_status; fi
        [ $started = 0 ] || [ $removed = 0 ] || fail "neither: $(cat $work/start.err $work/delete.err)"
        if [ $started = 0 ]; then
            [ $removed != 0 ] || fail "a running container was deleted"
            case $(cat $work/delete.err) in
            *"is not stopped"* | *"is being started") ;;
            *) fail "the refused delete: $(cat $work/delete.err)" ;;
            esac
            expect_eq "status" "$(status_of r)" running
            gone r
            ran=$((ran + 1))
        else
            expect_refused "not found" berthctl state r
            deleted=$((deleted + 1))
        fi
    done
    echo "#   $ran times it ran, $deleted times it was deleted"
    expect_unchanged before
}

case_command_lines_as_people_write_them() {
    sleeper w
    expect_eq "--" "$(berthctl exec --no-stdin w -- echo one)" one
    expect_eq "-- before the id" "$(berthctl exec --no-stdin -- w echo two)" two
    expect_status 255 berthctl exec --no-stdin w -- -- echo
    for flags in -it -ti "-i -t"; do
        expect_eq "$flags" "$(berthctl exec $flags w sh -c 'test -t 0 && echo tty' </dev/null | tr -d '\r')" tty
    done
    expect_eq "its value" "$(berthctl exec -ieA=1 w sh -c 'echo $A' </dev/null)" 1
    gone w
    # A terminal's end of input.
    expect_status 0 berthctl run -it -b "$(bundle w '["cat"]')" w </dev/null
}

case_wait_begun_before_the_exit() {
    sleeper w
    berthctl wait w >$work/waited &
    waiter=$!
    usleep 300000
    kill -0 $waiter || fail "wait does not wait: $(cat $work/waited)"
    berthctl kill w TERM
    berthctl kill w KILL
    wait $waiter
    expect_eq "what wait said" "$(cat $work/waited)" 137
    gone w
}

case_pause_and_resume() {
    sleeper p
    cgroup=$(cgroup_of p)
    expect_refused "not paused" berthctl resume p
    berthctl pause p || fail "pause"
    expect_eq "cgroup.freeze" "$(cat $cgroup/cgroup.freeze)" 1
    expect_has "cgroup.events" "$(cat $cgroup/cgroup.events)" "frozen 1"
    expect_eq "status" "$(status_of p)" paused
    expect_refused "" berthctl pause p
    expect_refused "" berthctl exec --no-stdin p true
    expect_eq "processes in it" "$(cat $cgroup/cgroup.procs $cgroup/*/cgroup.procs 2>/dev/null | wc -l)" 1
    berthctl resume p || fail "resume"
    expect_has "cgroup.events" "$(cat $cgroup/cgroup.events)" "frozen 0"
    expect_status 0 berthctl exec --no-stdin p true
    # A paused one can be killed.
    berthctl pause p
    berthctl kill p KILL
    expect_eq "status of what was killed frozen" "$(berthctl wait p)" 137
    gone p
}

case_close_io() {
    dir=$(bundle c '["cat"]')
    berthctl create -b $dir --stdin stream:// --stdout stream:// c || fail "create"
    berthctl start c
    (echo one | berthctl attach c) >$work/cat || fail "attach: $(cat $work/cat)"
    expect_eq "what cat said" "$(cat $work/cat)" one
    expect_eq "cat's status" "$(berthctl wait c)" 0
    gone c
}

case_pids() {
    sleeper q
    berthctl exec -d --exec-id two q sh -c 'sleep 100000 & sleep 100001; :' >/dev/null
    cgroup=$(cgroup_of q)
    four() { [ "$(cat $cgroup/cgroup.procs | wc -l)" = 4 ]; }
    wait_for 10 four || fail "cgroup.procs: $(cat $cgroup/cgroup.procs)"
    told=$(berthctl --json pids q | tr -c '0-9a-z' '\n' | grep -E '^[0-9]+$' | sort -n | tr '\n' ' ')
    expect_eq "what Pids says" "$told" "$(sort -n $cgroup/cgroup.procs | tr '\n' ' ')"
    gone q
}

case_no_process_outlives_the_pid_namespace() {
    sleeper n
    for i in 1 2 3; do berthctl exec -d n sleep 200000 >/dev/null; done
    init=$(init_of n)
    kill -KILL $init
    expect_eq "status" "$(berthctl wait n)" 137
    empty() { grep -q "populated 0" "$(cgroup_of n)/cgroup.events"; }
    wait_for 10 empty || fail "processes are left"
    wait_for 10 no_zombie || fail "a zombie is left"
    gone n
}

case_an_init_that_forks_twice() {
    # Its grandchildren are the init's to reap, then nobody's: they go with the namespace.
    dir=$(bundle f '["sh", "-c", "(sleep 300000 & exec sleep 0) & wait; exit 3"]')
    expect_status 3 berthctl run --no-stdin -b $dir f
    left() { ! grep -l 300000 /proc/[0-9]*/cmdline 2>/dev/null; }
    wait_for 5 left >/dev/null || fail "a grandchild is left"
    wait_for 5 no_zombie || fail "a zombie is left"
}

case_many_short_ones_leave_nothing() {
    sleeper many
    snapshot before
    dir=$(bundle s '["true"]')
    for i in 1 2 3 4 5 6 7 8; do
        expect_status 0 berthctl run --no-stdin -b $dir s$i
        expect_status 0 berthctl exec --no-stdin many true
    done
    wait_for 10 no_zombie || fail "a zombie is left"
    expect_unchanged before
    gone many
}

case_exec_inherits_and_gains_nothing() {
    sleeper g
    caps() { grep -E '^(Cap|NoNew|Seccomp)' | tr -s '\t\n' '  '; }
    init=$(caps </proc/$(init_of g)/status)
    expect_eq "what an exec has" "$(berthctl exec --no-stdin g cat /proc/self/status | caps)" "$init"
    for n in pid net ipc uts mnt cgroup; do
        expect_eq "$n namespace" "$(berthctl exec --no-stdin g readlink /proc/self/ns/$n)" "$(readlink /proc/$(init_of g)/ns/$n)"
    done
    expect_status 255 berthctl exec --no-stdin -c CAP_SYS_ADMIN g true
    expect_has "more than the init has" "$err" "CAP_SYS_ADMIN is not in the container's bounding set"
    expect_eq "an exec's cgroup" "$(berthctl exec --no-stdin g cat /proc/self/cgroup)" "$(cat /proc/$(init_of g)/cgroup)"
    # In a container without no_new_privs an exec may ask for it, and then has it.
    gone g
    sleeper g 's/"noNewPrivileges": true/"noNewPrivileges": false/'
    expect_has "no_new_privs" "$(berthctl exec --no-stdin --no-new-privs g cat /proc/self/status)" "NoNewPrivs:	1"
    expect_has "no_new_privs" "$(berthctl exec --no-stdin g cat /proc/self/status)" "NoNewPrivs:	0"
    gone g
}

case_exec_with_own_user_cwd_and_environment() {
    sleeper u
    expect_eq "id" "$(berthctl exec --no-stdin -u 65534:65534 -g 7 u sh -c 'id -u; id -g; id -G' | tr '\n' ' ')" "65534 65534 65534 7 "
    expect_eq "HOME of nobody" "$(berthctl exec --no-stdin -u 65534:65534 u sh -c 'echo $HOME')" /
    expect_eq "cwd" "$(berthctl exec --no-stdin --cwd /etc u pwd)" /etc
    expect_eq "variable" "$(berthctl exec --no-stdin -e A=1 -e A=2 u sh -c 'echo $A')" 2
    expect_status 255 berthctl exec --no-stdin --cwd /nowhere u true
    expect_has "a missing cwd" "$err" process.cwd
    expect_eq "capabilities of another user" "$(berthctl exec --no-stdin -u 65534:65534 u sh -c 'grep CapEff /proc/self/status' | tr -d '\t ')" \
        "$(grep CapAmb /proc/$(init_of u)/status | sed s/CapAmb/CapEff/ | tr -d '\t ')"
    gone u
}

case_terminal_size_and_resize() {
    dir=$(bundle t '["sh", "-c", "stty size; trap \"stty size; exit 5\" WINCH; echo armed; while :; do sleep 0.1; done"]' \
        's/"terminal": false/"terminal": true, "consoleSize": {"height": 33, "width": 101}/')
    berthctl create -b $dir --stdin stream:// --stdout stream:// t || fail "create"
    berthctl start t
    berthctl attach --no-stdin t >$work/tty &
    attached=$!
    armed() { grep -q armed $work/tty; }
    wait_for 20 armed || fail "the terminal says: $(cat $work/tty)"
    master=$(init_of t)
    # The kernel's own view: the slave's size.
    expect_eq "size" "$(stty size -F /proc/$master/fd/0 2>/dev/null || stty -F /proc/$master/fd/0 size)" "33 101"
    expect_eq "the foreground session" "$(awk '{print $6, $7 != 0}' /proc/$master/stat)" "$master 1"
    berthctl kill t KILL
    wait $attached
    gone t
}

# With nobody's end taking the others along, KILL of the init is KILL of all, also once the init has ended.
case_kill_without_a_pid_namespace() {
    for end in none init; do
        b=$(bundle nopid '["sh","-c","sleep 500001 & sleep 500002 & sleep 500003; true"]' '/"namespaces": \[/{n;N;N;d}')
        berthctl run -d -b "$b" nopid >/dev/null
        cgroup=$(cgroup_of nopid)
        four() { [ "$(find "$cgroup" -name cgroup.procs -exec cat {} + | wc -l)" = 4 ]; }
        wait_for 5 four || fail "$end: $(find "$cgroup" -name cgroup.procs -exec cat {} +)"
        if [ $end = init ]; then
            kill -9 "$(init_of nopid)"
            expect_eq "the init" "$(berthctl wait nopid)" 137
        fi
        berthctl kill nopid KILL || fail "$end: kill"
        none() { [ -z "$(find "$cgroup" -name cgroup.procs -exec cat {} +)" ]; }
        wait_for 5 none || fail "$end: left: $(find "$cgroup" -name cgroup.procs -exec cat {} +)"
        expect_eq "$end" "$(berthctl wait nopid)" 137
        ! berthctl kill nopid KILL 2>/dev/null || fail "$end: a container without a process was killed"
        gone nopid
    done
}

case_shared_pid_namespace() {
    sleeper a
    pid=$(init_of a)
    sleeper b "s|\"type\": \"pid\"|\"type\": \"pid\", \"path\": \"/proc/$pid/ns/pid\"|"
    other=$(init_of b)
    expect_eq "the namespace" "$(readlink /proc/$other/ns/pid)" "$(readlink /proc/$pid/ns/pid)"
    [ "$(readlink /proc/$other/ns/mnt)" != "$(readlink /proc/$pid/ns/mnt)" ] || fail "mount namespaces are one"
    # b's end leaves a alone; its leftovers go with the deletion.
    berthctl exec -d b sleep 400000 >/dev/null
    berthctl kill b KILL
    expect_eq "b" "$(berthctl wait b)" 137
    gone b
    [ ! -e "$(cgroup_of b)" ] || fail "b's cgroup is left"
    ! grep -l 400000 /proc/[0-9]*/cmdline 2>/dev/null || fail "b's exec is left"
    kill -0 $pid || fail "a died with b"
    # a's end is the namespace's.
    sleeper b "s|\"type\": \"pid\"|\"type\": \"pid\", \"path\": \"/proc/$pid/ns/pid\"|"
    berthctl kill a KILL
    expect_eq "b, whose namespace is gone" "$(berthctl wait b)" 137
    gone a
    gone b
    wait_for 5 no_zombie || fail "a zombie is left"
}

case_a_file_system_that_does_not_answer_holds_nobody() {
    make_rootfs
    mkdir -p /run/hung
    hung_fs /run/hung >/run/hung.out &
    server=$!
    for i in $(seq 100); do grep -q mounted /run/hung.out && break; sleep 0.1; done
    # Nothing may ask it for its root either.
    agent_calls hung /run/hung $server || fail "agent_calls hung"
    wait $server
    umount /run/hung || fail "it is still mounted somewhere"
    rm -r /run/hung /run/hung.out
}
