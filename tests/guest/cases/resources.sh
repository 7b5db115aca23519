# The resource contract: tests/guest/data/resources.rows, row by row, against the kernel's files.
# limit: 600
# kernel: both

# walk MODE: the whole table; what is not ok is shown by name.
walk() {
    make_rootfs
    resource_rows "$1" /tests/data/resources.rows >$work/rows 2>&1
    status=$?
    grep -v '^ok ' $work/rows
    [ $status = 0 ] || fail "$(grep '^not ok ' $work/rows | head -n 1)"
    walked=$(grep -c '^ok ' $work/rows)
    [ "$walked" -ge 150 ] || fail "only $walked rows"
}

case_every_row_on_create() { walk create; }
case_every_row_on_update() { walk update; }
