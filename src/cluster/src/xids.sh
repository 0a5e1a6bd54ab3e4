# Prints what NVIDIA's driver has last written to the kernel's log, or `denied`. Lines say for how long the node had been up.
# On many nodes, users may read neither dmesg nor the journal, and whoever may not read the journal can be shown an empty one
# with success: since boot, the kernel has always said something.
kernel_journal() {
    timeout -k 1 5 journalctl -k -b -o short-monotonic --no-pager 2>/dev/null |
        awk '/ kernel: / { some = 1 } /NVRM: Xid/; END { exit !some }'
}
xids() {
    { dmesg 2>/dev/null || kernel_journal || echo denied; } | grep -aE 'NVRM: Xid|^denied' | tail -n 50
}
