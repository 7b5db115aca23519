# Stdio over the guest's own ways to the agent: the local socket, and the loopback with the handshake.
# limit: 180

over_loopback() {
    export BERTH_ADDRESS=vsock://1:1023 BERTH_SECRET_FILE=/tests/secret
    berthctl info >/dev/null || fail "the loopback is not served"
}
noise() { [ -e $work/noise ] || head -c 16777216 /dev/urandom >$work/noise; }

sixteen_mib_in_and_64_mib_out() {
    noise
    b=$(bundle big '["sh","-c","sha256sum; i=0; while [ $i -lt 4 ]; do cat /noise; i=$((i+1)); done"]')
    touch $rootfs/noise
    mount -o bind $work/noise $rootfs/noise
    sum=$(sha256sum <$work/noise | cut -c1-64)
    wanted=$({ echo "$sum  -"; cat $work/noise $work/noise $work/noise $work/noise; } | sha256sum)
    seen=$(berthctl run --bundle $b big <$work/noise | sha256sum)
    umount $rootfs/noise
    expect_eq "the checksum" "$seen" "$wanted"
}

case_64_mib_over_the_loopback() { over_loopback; sixteen_mib_in_and_64_mib_out; }
case_64_mib_over_the_local_socket() { sixteen_mib_in_and_64_mib_out; }

all_three_streams_and_the_status() {
    b=$(bundle three '["sh","-c","read -r line; echo out $line; echo err $line >&2; exit 9"]')
    status=0
    echo word | berthctl run --bundle $b three >$work/out 2>$work/err || status=$?
    expect_eq "the status" $status 9
    expect_eq "stdout" "$(cat $work/out)" "out word"
    expect_eq "stderr" "$(cat $work/err)" "err word"
    b=$(bundle three '["sleep","1000"]')
    berthctl run --detach --bundle $b three >/dev/null || fail "run --detach"
    status=0
    head -c 300000 /dev/zero | berthctl exec three sh -c 'wc -c; echo e >&2; exit 4' >$work/out 2>$work/err || status=$?
    expect_eq "the exec's status" $status 4
    expect_eq "the exec's stdout" "$(cat $work/out)" 300000
    expect_eq "the exec's stderr" "$(cat $work/err)" e
    berthctl kill three KILL && wait_for 20 sh -c 'berthctl state three | grep -q -i stopped'
    berthctl delete three || fail "delete"
}
case_three_streams_over_the_loopback() { over_loopback; all_three_streams_and_the_status; }
case_three_streams_over_the_local_socket() { all_three_streams_and_the_status; }

case_cid_1_is_accepted_with_allow_local() {
    over_loopback
    BERTH_SECRET_FILE=$work/wrong
    head -c 32 /dev/urandom >$work/wrong
    expect_refused "refused" berthctl info
}
