# Prints the last Xid lines of the kernel log, or `denied`. Lines begin with the uptime in seconds.
# On many nodes, users may read neither dmesg nor the journal. Without permission journalctl may succeed with no kernel lines,
# so a journal without any kernel line counts as denied.
kernel_journal() {
    timeout -k 1 5 journalctl -k -b -o short-monotonic --no-pager 2>/dev/null |
        awk '/ kernel: / { some = 1 } /NVRM: Xid/; END { exit !some }'
}
xids() {
    { dmesg 2>/dev/null || kernel_journal || echo denied; } | grep -aE 'NVRM: Xid|^denied' | tail -n 50
}
